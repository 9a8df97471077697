package wire

import (
	"bytes"
	"testing"
)

// FuzzReplyReader: whatever a server sends, the reader never panics, keeps at most one frame, and sees
// the same however the bytes are cut.
func FuzzReplyReader(f *testing.F) {
	for _, s := range stanzas(f, "v4-server.vec") {
		f.Add(unhex(f, s["wire"]), 1)
	}
	for _, s := range stanzas(f, "v4-server-malformed.vec") {
		f.Add(unhex(f, s["wire"]), 3)
	}
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		whole, wholeErr := opsOf(data)
		cut = max(0, min(cut, len(data)))
		split, splitErr := opsOf(data[:cut], data[cut:])
		if !bytes.Equal(whole, split) || (wholeErr == nil) != (splitErr == nil) {
			t.Fatalf("whole %q %v, cut at %d %q %v", whole, wholeErr, cut, split, splitErr)
		}
	})
}

// opsOf is the ops that a reader takes of pieces, and how it ended.
func opsOf(pieces ...[]byte) ([]byte, error) {
	var ops []byte
	reader := &ReplyReader{}
	for _, piece := range pieces {
		err := reader.Feed(piece, func(reply *Reply) error {
			ops = append(ops, reply.Op)
			return nil
		})
		if err != nil {
			return ops, err
		}
		if reader.Buffered() > HeaderBytes+serverBodyBounds[ReplyWelcome].high {
			panic("more than a frame is kept")
		}
	}
	return ops, nil
}

// FuzzDecode: what decodes encodes to the same bytes again.
func FuzzDecode(f *testing.F) {
	for _, direction := range []string{"client", "server"} {
		for _, s := range stanzas(f, "v4-"+direction+".vec") {
			f.Add(direction == "client", unhex(f, s["wire"]))
		}
	}
	f.Fuzz(func(t *testing.T, fromClient bool, frame []byte) {
		direction := map[bool]string{true: "client", false: "server"}[fromClient]
		name, fields, err := Decode(direction, frame)
		if err != nil {
			return
		}
		again, err := Encode(direction, name, fields)
		if err != nil || !bytes.Equal(again, frame) {
			t.Fatalf("%s %v encodes to %x (%v)", name, fields, again, err)
		}
	})
}
