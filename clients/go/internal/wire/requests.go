package wire

import "encoding/binary"

func header(op byte, fixed, tail int) []byte {
	frame := make([]byte, HeaderBytes, HeaderBytes+fixed+tail)
	frame[0] = op
	binary.BigEndian.PutUint16(frame[1:], uint16(fixed+tail))
	return frame
}

// AcquireFrame is A: it asks for one key.
func AcquireFrame(requestID uint64, waitMs, leaseMs uint32, key string) []byte {
	frame := binary.BigEndian.AppendUint64(header(OpAcquire, 16, len(key)), requestID)
	frame = binary.BigEndian.AppendUint32(frame, waitMs)
	frame = binary.BigEndian.AppendUint32(frame, leaseMs)
	return append(frame, key...)
}

// AcquireSetFrame is S: it asks for several keys, which must be sorted and different.
func AcquireSetFrame(requestID uint64, waitMs, leaseMs uint32, keys []string) []byte {
	tail := 1
	for _, key := range keys {
		tail += 1 + len(key)
	}
	frame := binary.BigEndian.AppendUint64(header(OpAcquireSet, 16, tail), requestID)
	frame = binary.BigEndian.AppendUint32(frame, waitMs)
	frame = binary.BigEndian.AppendUint32(frame, leaseMs)
	frame = append(frame, byte(len(keys)))
	for _, key := range keys {
		frame = append(append(frame, byte(len(key))), key...)
	}
	return frame
}

// ReleaseFrame is R: it ends a ticket.
func ReleaseFrame(requestID, token uint64, key string) []byte {
	return twoIDs(OpRelease, requestID, token, key)
}

// CancelFrame is C: it undoes an acquire.
func CancelFrame(requestID, acquireID uint64, key string) []byte {
	return twoIDs(OpCancel, requestID, acquireID, key)
}

func twoIDs(op byte, first, second uint64, key string) []byte {
	frame := binary.BigEndian.AppendUint64(header(op, 16, len(key)), first)
	return append(binary.BigEndian.AppendUint64(frame, second), key...)
}

// ExtendFrame is X: it makes a lease end later.
func ExtendFrame(requestID, token uint64, leaseMs uint32, key string) []byte {
	frame := binary.BigEndian.AppendUint64(header(OpExtend, 20, len(key)), requestID)
	frame = binary.BigEndian.AppendUint64(frame, token)
	return append(binary.BigEndian.AppendUint32(frame, leaseMs), key...)
}

// PingFrame is P: it asks for a sign of life.
func PingFrame(echo uint64) []byte {
	return binary.BigEndian.AppendUint64(header(OpPing, 8, 0), echo)
}
