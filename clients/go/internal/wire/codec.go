package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
)

// Malformed are bytes or values that no correct peer sends.
type Malformed struct {
	// Layer is stream, frame, body or state.
	Layer string
	// Why says what is wrong.
	Why string
}

// Error says what is wrong.
func (m *Malformed) Error() string { return m.Why }

func malformed(layer, format string, args ...any) *Malformed {
	return &Malformed{Layer: layer, Why: fmt.Sprintf(format, args...)}
}

// Fields are the values of a frame by name: uint64 for integers, []byte for bytes and text, and
// [][]byte for keys.
type Fields map[string]any

// field is one fixed field: an integer of 1, 2, 4 or 8 bytes, or a run of raw bytes.
type field struct {
	name string
	size int
	raw  bool
}

// layout is one frame: its fixed fields, then its tail.
type layout struct {
	name  string
	op    byte
	fixed []field
	tail  string
}

var (
	version     = field{name: "version", size: 1}
	clientID    = field{name: "client_id", size: 8}
	connection  = field{name: "connection", size: 4}
	clientNonce = field{name: "client_nonce", size: ClientNonceBytes, raw: true}
	clientMac   = field{name: "mac", size: ClientMacBytes, raw: true}
	requestID   = field{name: "request_id", size: 8}
	waitMs      = field{name: "wait_ms", size: 4}
	leaseMs     = field{name: "lease_ms", size: 4}
	token       = field{name: "token", size: 8}
	acquireID   = field{name: "acquire_id", size: 8}
	echo        = field{name: "echo", size: 8}
	role        = field{name: "role", size: 1}
	keepaliveS  = field{name: "keepalive_s", size: 2}
	fingerprint = field{name: "fingerprint", size: FingerprintBytes, raw: true}
	proof       = field{name: "proof", size: ProofBytes, raw: true}
	waitedMs    = field{name: "waited_ms", size: 4}
	reason      = field{name: "reason", size: 1}
	code        = field{name: "code", size: 1}
)

var clientFrames = []layout{
	{"hello", OpHello, []field{version, clientID, connection, clientNonce, clientMac}, "label"},
	{"acquire", OpAcquire, []field{requestID, waitMs, leaseMs}, "key"},
	{"acquire_set", OpAcquireSet, []field{requestID, waitMs, leaseMs}, "keys"},
	{"release", OpRelease, []field{requestID, token}, "key"},
	{"extend", OpExtend, []field{requestID, token, leaseMs}, "key"},
	{"cancel", OpCancel, []field{requestID, acquireID}, "key"},
	{"ping", OpPing, []field{echo}, ""},
}

var serverFrames = []layout{
	{"welcome", ReplyWelcome, []field{role, keepaliveS, fingerprint, proof}, "leader"},
	{"granted", ReplyGranted, []field{requestID, token, waitedMs}, ""},
	{"timed_out", ReplyTimedOut, []field{requestID}, ""},
	{"overloaded", ReplyOverloaded, []field{requestID}, ""},
	{"released", ReplyReleased, []field{requestID}, ""},
	{"not_held", ReplyNotHeld, []field{requestID}, ""},
	{"extended", ReplyExtended, []field{requestID, leaseMs}, ""},
	{"cancelled", ReplyCancelled, []field{requestID}, ""},
	{"dropped", ReplyDropped, []field{token, reason}, ""},
	{"leader", ReplyLeader, nil, "leader"},
	{"error", ReplyError, []field{requestID, code}, "text"},
	{"ping", ReplyPing, []field{echo}, ""},
}

// side is what one of the two peers sends.
type side struct {
	name   string
	frames []layout
	bounds *[256]bodyBounds
}

func sideOf(direction string) (side, error) {
	switch direction {
	case "client":
		return side{direction, clientFrames, &clientBodyBounds}, nil
	case "server":
		return side{direction, serverFrames, &serverBodyBounds}, nil
	}
	return side{}, malformed("frame", "direction %q is neither client nor server", direction)
}

// Encode returns a whole frame, header included. Direction says who sends it: client or server.
// It fails with Malformed where a value is missing or out of bounds.
func Encode(direction, name string, values Fields) ([]byte, error) {
	from, err := sideOf(direction)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(from.frames, func(l layout) bool { return l.name == name })
	if at < 0 {
		return nil, malformed("frame", "a %s sends no frame %q", direction, name)
	}
	frame, err := appendBody([]byte{from.frames[at].op, 0, 0}, &from.frames[at], values)
	if err != nil {
		return nil, err
	}
	if err := from.checkLength("body", frame[0], len(frame)-HeaderBytes); err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint16(frame[1:], uint16(len(frame)-HeaderBytes))
	if _, _, err := Decode(direction, frame); err != nil {
		return nil, err
	}
	return frame, nil
}

func appendBody(frame []byte, l *layout, values Fields) ([]byte, error) {
	wanted := len(l.fixed)
	for _, f := range l.fixed {
		var err error
		if frame, err = appendField(frame, f, values[f.name]); err != nil {
			return nil, err
		}
	}
	if l.tail != "" {
		wanted++
		switch tail := values[l.tail].(type) {
		case []byte:
			frame = append(frame, tail...)
		case [][]byte:
			var err error
			if frame, err = appendKeys(frame, tail); err != nil {
				return nil, err
			}
		default:
			return nil, malformed("body", "%s: %s is %T", l.name, l.tail, tail)
		}
	}
	if len(values) != wanted {
		return nil, malformed("body", "%s takes %d fields, not %d", l.name, wanted, len(values))
	}
	return frame, nil
}

func appendField(frame []byte, f field, value any) ([]byte, error) {
	switch value := value.(type) {
	case []byte:
		if f.raw && len(value) == f.size {
			return append(frame, value...), nil
		}
	case uint64:
		if !f.raw && (f.size == 8 || value>>(8*f.size) == 0) {
			return append(frame, binary.BigEndian.AppendUint64(nil, value)[8-f.size:]...), nil
		}
	}
	return nil, malformed("body", "%s is %v, which does not fit %d bytes", f.name, value, f.size)
}

// Decode returns name and fields of one whole frame; direction says who sent it. It fails with
// Malformed and keeps no reference to the frame.
func Decode(direction string, frame []byte) (string, Fields, error) {
	from, err := sideOf(direction)
	if err != nil {
		return "", nil, err
	}
	if len(frame) == 0 {
		return "", nil, malformed("stream", "no bytes")
	}
	at := slices.IndexFunc(from.frames, func(l layout) bool { return l.op == frame[0] })
	if at < 0 {
		return "", nil, malformed("frame", "a %s sends no op 0x%02x", direction, frame[0])
	}
	if len(frame) < HeaderBytes {
		return "", nil, malformed("stream", "the header is cut off")
	}
	length := int(binary.BigEndian.Uint16(frame[1:]))
	if err := from.checkLength("frame", frame[0], length); err != nil {
		return "", nil, err
	}
	body := bytes.Clone(frame[HeaderBytes:])
	if len(body) != length {
		return "", nil, malformed("stream", "the body has %d bytes, not %d", len(body), length)
	}
	l := &from.frames[at]
	values := make(Fields, len(l.fixed)+1)
	for _, f := range l.fixed {
		values[f.name] = readField(f, body[:f.size])
		body = body[f.size:]
	}
	if err := checkValues(from.name, l.name, values); err != nil {
		return "", nil, err
	}
	return l.name, values, readTail(l, body, values)
}

func readField(f field, data []byte) any {
	if f.raw {
		return data
	}
	value := uint64(0)
	for _, b := range data {
		value = value<<8 | uint64(b)
	}
	return value
}

func readTail(l *layout, tail []byte, values Fields) error {
	switch l.tail {
	case "":
		return nil
	case "keys":
		keys, err := parseKeys(tail)
		values["keys"] = keys
		return err
	case "label":
		if !IsLabelText(tail) {
			return malformed("body", "label has bytes other than printable ASCII without space")
		}
	}
	values[l.tail] = tail
	return nil
}

// IsLabelText tells whether text is printable ASCII without space.
func IsLabelText(text []byte) bool {
	return !slices.ContainsFunc(text, func(b byte) bool { return b < 0x21 || b > 0x7E })
}

func (s side) checkLength(layer string, op byte, length int) error {
	bounds := s.bounds[op]
	if length < bounds.low || length > bounds.high {
		return malformed(layer, "a body of %d bytes, where %c takes %d to %d",
			length, op, bounds.low, bounds.high)
	}
	return nil
}

func checkValues(direction, name string, values Fields) error {
	if direction == "client" {
		if lease, has := values["lease_ms"]; has && (lease.(uint64) < LeaseMsMin || lease.(uint64) > LeaseMsMax) {
			return malformed("body", "lease_ms %d is not %d to %d", lease, LeaseMsMin, LeaseMsMax)
		}
		return nil
	}
	switch name {
	case "welcome":
		return CheckWelcome(byte(values["role"].(uint64)), uint16(values["keepalive_s"].(uint64)))
	case "dropped":
		return CheckDropReason(byte(values["reason"].(uint64)))
	case "error":
		return CheckErrorCode(byte(values["code"].(uint64)))
	}
	return nil
}

// CheckWelcome refuses a role or a keepalive_s that no server has.
func CheckWelcome(role byte, keepaliveS uint16) error {
	if role > RoleUnknown {
		return malformed("body", "role %d is unknown", role)
	}
	if keepaliveS < KeepaliveSMin || keepaliveS > KeepaliveSMax {
		return malformed("body", "keepalive_s %d is not %d to %d", keepaliveS, KeepaliveSMin, KeepaliveSMax)
	}
	return nil
}

// CheckDropReason refuses a reason that version 4 does not have.
func CheckDropReason(reason byte) error {
	if reason < DropLeaseOver || reason > DropOtherClient {
		return malformed("body", "reason %d is unknown", reason)
	}
	return nil
}

// CheckErrorCode refuses a code that version 4 does not have.
func CheckErrorCode(code byte) error {
	if _, known := Errors[code]; !known {
		return malformed("body", "code %d is unknown", code)
	}
	return nil
}

// appendKeys appends the tail of a set: a count, then each key behind its length.
func appendKeys(frame []byte, keys [][]byte) ([]byte, error) {
	if len(keys) > 255 {
		return nil, malformed("body", "%d keys are too many", len(keys))
	}
	frame = append(frame, byte(len(keys)))
	for _, key := range keys {
		if len(key) > 255 {
			return nil, malformed("body", "a key of %d bytes is too long", len(key))
		}
		frame = append(append(frame, byte(len(key))), key...)
	}
	return frame, nil
}

func parseKeys(tail []byte) ([][]byte, error) {
	count, rest := int(tail[0]), tail[1:]
	if count < SetKeysMin || count > SetKeysMax {
		return nil, malformed("body", "keys: %d keys are not %d to %d", count, SetKeysMin, SetKeysMax)
	}
	keys := make([][]byte, 0, count)
	for range count {
		if len(rest) == 0 {
			return nil, malformed("body", "keys end early")
		}
		length := int(rest[0])
		if length < KeyBytesMin || length > KeyBytesMax || length > len(rest)-1 {
			return nil, malformed("body", "keys: a key of %d bytes", length)
		}
		key := rest[1 : 1+length]
		if len(keys) > 0 && bytes.Compare(key, keys[len(keys)-1]) <= 0 {
			return nil, malformed("body", "keys are not strictly rising")
		}
		keys, rest = append(keys, key), rest[1+length:]
	}
	if len(rest) != 0 {
		return nil, malformed("body", "keys do not fill the body")
	}
	return keys, nil
}
