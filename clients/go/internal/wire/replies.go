package wire

import "encoding/binary"

// Reply is a server's frame as the client reads it. Which fields count depends on Op.
type Reply struct {
	Op byte
	// ID is the request id; of a ping the echo.
	ID uint64
	// Token is the token of a granted or dropped ticket.
	Token uint64
	// Ms is the time of a grant (waited) or an extend (lease).
	Ms uint32
	// Code is the code of an error, the reason of a drop, the role of a welcome.
	Code byte
	// KeepaliveS, Fingerprint and Proof are those of a welcome.
	KeepaliveS         uint16
	Fingerprint, Proof []byte
	// Tail is the leader's address or an error's text. It is valid until the next Feed.
	Tail []byte
}

// ReplyReader cuts a server's stream into replies. It keeps at most one unfinished frame.
type ReplyReader struct {
	rest  []byte
	reply Reply // The one that is being taken, kept so that none is allocated.
}

// Buffered tells how many bytes there are of the frame that is not yet whole.
func (r *ReplyReader) Buffered() int { return len(r.rest) }

// Feed hands each whole frame to take, in order; what take gets is valid until it returns. It ends with Malformed at the first byte that
// breaks the rules, or with the error of take; what came before was taken.
func (r *ReplyReader) Feed(data []byte, take func(*Reply) error) error {
	if len(r.rest) > 0 {
		data = append(r.rest, data...)
	}
	for len(data) > 0 {
		size, err := frameSize(data)
		if err != nil {
			return err
		}
		if size == 0 || size > len(data) {
			break
		}
		r.reply = parseReply(data[:size])
		if err := take(&r.reply); err != nil {
			return err
		}
		data = data[size:]
	}
	r.rest = append([]byte(nil), data...)
	return nil
}

// frameSize is the size of the frame that data begins with, or 0 while that can't be known.
func frameSize(data []byte) (int, error) {
	bounds := serverBodyBounds[data[0]]
	if bounds.high == 0 {
		return 0, malformed("frame", "op 0x%02x is unknown", data[0])
	}
	if len(data) < HeaderBytes {
		return 0, nil
	}
	length := int(binary.BigEndian.Uint16(data[1:]))
	if length < bounds.low || length > bounds.high {
		return 0, malformed("frame", "a body of %d bytes, where %c takes %d to %d",
			length, data[0], bounds.low, bounds.high)
	}
	return HeaderBytes + length, nil
}

// parseReply reads a frame whose length was found to be right.
func parseReply(frame []byte) Reply {
	reply, body := Reply{Op: frame[0]}, frame[HeaderBytes:]
	switch reply.Op {
	case ReplyWelcome:
		reply.Code = body[0]
		reply.KeepaliveS = binary.BigEndian.Uint16(body[1:])
		reply.Fingerprint = body[3 : 3+FingerprintBytes]
		reply.Proof = body[3+FingerprintBytes : 3+FingerprintBytes+ProofBytes]
		reply.Tail = body[3+FingerprintBytes+ProofBytes:]
	case ReplyLeader:
		reply.Tail = body
	case ReplyDropped:
		reply.Token, reply.Code = binary.BigEndian.Uint64(body), body[8]
	case ReplyError:
		reply.ID, reply.Code, reply.Tail = binary.BigEndian.Uint64(body), body[8], body[9:]
	case ReplyGranted:
		reply.ID = binary.BigEndian.Uint64(body)
		reply.Token = binary.BigEndian.Uint64(body[8:])
		reply.Ms = binary.BigEndian.Uint32(body[16:])
	case ReplyExtended:
		reply.ID, reply.Ms = binary.BigEndian.Uint64(body), binary.BigEndian.Uint32(body[8:])
	default:
		reply.ID = binary.BigEndian.Uint64(body)
	}
	return reply
}
