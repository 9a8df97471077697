package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// stanza is one vector: its lines by name.
type stanza map[string]string

var notFields = []string{
	"id", "frame", "dir", "flags", "why", "wire", "error", "layer", "answer", "hash", "result",
}

// stanzas reads a file of golden vectors; a missing file fails the test.
func stanzas(t testing.TB, name string) []stanza {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "spec", "vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	var found []stanza
	for _, part := range strings.Split(string(text), "\n\n")[1:] {
		s := stanza{}
		for _, line := range strings.Split(strings.Trim(part, "\n"), "\n") {
			key, value, _ := strings.Cut(line, ":")
			s[key] = strings.TrimPrefix(value, " ")
		}
		found = append(found, s)
	}
	if len(found) == 0 {
		t.Fatalf("%s has no vectors", name)
	}
	return found
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(strings.TrimPrefix(text, "x:"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (s stanza) fields(t testing.TB) Fields {
	t.Helper()
	fields := Fields{}
	for key, text := range s {
		switch {
		case slices.Contains(notFields, key):
		case key == "keys":
			keys := [][]byte{}
			for _, part := range strings.Split(text, ",") {
				keys = append(keys, unhex(t, part))
			}
			fields[key] = keys
		case strings.HasPrefix(text, "x:"):
			fields[key] = unhex(t, text)
		default:
			number, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatalf("%s: %s: %v", s["id"], key, err)
			}
			fields[key] = number
		}
	}
	return fields
}

// REQ-FRAME-BYTES: each frame encodes to its bytes, and decodes to its fields.
func TestFrames(t *testing.T) {
	for _, direction := range []string{"client", "server"} {
		seen := stanzas(t, "v4-"+direction+".vec")
		if len(seen) < 100 {
			t.Fatalf("only %d vectors", len(seen))
		}
		for _, s := range seen {
			frame, fields := unhex(t, s["wire"]), s.fields(t)
			name, got, err := Decode(direction, frame)
			if err != nil || name != s["frame"] || !reflect.DeepEqual(got, fields) {
				t.Errorf("%s: decoded to %s %v (%v)", s["id"], name, got, err)
			}
			if slices.Contains(strings.Fields(s["flags"]), "tolerated") {
				continue
			}
			again, err := Encode(direction, s["frame"], fields)
			if err != nil || !bytes.Equal(again, frame) {
				t.Errorf("%s: encoded to %x (%v)", s["id"], again, err)
			}
		}
	}
}

// The functions that the client sends with make the same bytes as the golden vectors.
func TestRequestFrames(t *testing.T) {
	for _, s := range stanzas(t, "v4-client.vec") {
		f := s.fields(t)
		number := func(name string) uint64 { n, _ := f[name].(uint64); return n }
		raw := func(name string) []byte { b, _ := f[name].([]byte); return b }
		var frame []byte
		switch s["frame"] {
		case "hello":
			continue // Its mac is not one of its fields' making: TestHashes.
		case "acquire":
			frame = AcquireFrame(number("request_id"), uint32(number("wait_ms")), uint32(number("lease_ms")), string(raw("key")))
		case "acquire_set":
			var keys []string
			for _, key := range f["keys"].([][]byte) {
				keys = append(keys, string(key))
			}
			frame = AcquireSetFrame(number("request_id"), uint32(number("wait_ms")), uint32(number("lease_ms")), keys)
		case "release":
			frame = ReleaseFrame(number("request_id"), number("token"), string(raw("key")))
		case "extend":
			frame = ExtendFrame(number("request_id"), number("token"), uint32(number("lease_ms")), string(raw("key")))
		case "cancel":
			frame = CancelFrame(number("request_id"), number("acquire_id"), string(raw("key")))
		case "ping":
			frame = PingFrame(number("echo"))
		default:
			t.Fatalf("%s: a frame that this test does not know", s["id"])
		}
		if !bytes.Equal(frame, unhex(t, s["wire"])) {
			t.Errorf("%s: %x", s["id"], frame)
		}
	}
}

// REQ-FRAME-OP REQ-FRAME-LENGTH: what no correct peer sends is refused, at the right layer.
func TestMalformedFrames(t *testing.T) {
	for _, direction := range []string{"client", "server"} {
		for _, s := range stanzas(t, "v4-"+direction+"-malformed.vec") {
			_, _, err := Decode(direction, unhex(t, s["wire"]))
			var refusal *Malformed
			if !errors.As(err, &refusal) || refusal.Layer != s["layer"] {
				t.Errorf("%s: %v, where layer %s refuses", s["id"], err, s["layer"])
			}
		}
	}
}

// feed returns what a reader makes of pieces; tails are copied, as they are valid for a moment.
func feed(t testing.TB, pieces ...[]byte) ([]Reply, *ReplyReader) {
	t.Helper()
	var replies []Reply
	reader := &ReplyReader{}
	for _, piece := range pieces {
		err := reader.Feed(piece, func(reply *Reply) error {
			kept := *reply
			kept.Tail, kept.Proof = bytes.Clone(reply.Tail), bytes.Clone(reply.Proof)
			kept.Fingerprint = bytes.Clone(reply.Fingerprint)
			replies = append(replies, kept)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return replies, reader
}

// REQ-FRAME-SPLIT: whole, byte by byte and in one batch, the reader sees the same.
func TestReaderAtEverySplit(t *testing.T) {
	var batch []byte
	var ops []byte
	for _, s := range stanzas(t, "v4-server.vec") {
		frame := unhex(t, s["wire"])
		batch, ops = append(batch, frame...), append(ops, frame[0])
		replies, _ := feed(t, frame)
		if len(replies) != 1 {
			t.Fatalf("%s: %d replies", s["id"], len(replies))
		}
		compareReply(t, s, &replies[0])
	}
	whole, _ := feed(t, batch)
	for at, reply := range whole {
		if reply.Op != ops[at] {
			t.Fatalf("reply %d is %c", at, reply.Op)
		}
	}
	var single [][]byte
	for at := range batch {
		single = append(single, batch[at:at+1])
	}
	replies, reader := feed(t, single...)
	if !reflect.DeepEqual(replies, whole) || len(whole) != len(ops) || reader.Buffered() != 0 {
		t.Error("byte by byte the reader sees something else")
	}
}

// compareReply compares a reply with the fields of its vector.
func compareReply(t *testing.T, s stanza, reply *Reply) {
	t.Helper()
	for name, value := range s.fields(t) {
		got := map[string]any{
			"request_id": reply.ID, "echo": reply.ID, "token": reply.Token,
			"waited_ms": uint64(reply.Ms), "lease_ms": uint64(reply.Ms),
			"reason": uint64(reply.Code), "code": uint64(reply.Code), "role": uint64(reply.Code),
			"keepalive_s": uint64(reply.KeepaliveS), "fingerprint": reply.Fingerprint,
			"proof": reply.Proof, "leader": reply.Tail, "text": reply.Tail,
		}[name]
		if data, isBytes := value.([]byte); isBytes && len(data) == 0 {
			value, got = 0, len(got.([]byte))
		}
		if !reflect.DeepEqual(got, value) {
			t.Errorf("%s: %s is %v", s["id"], name, got)
		}
	}
}

// REQ-FRAME-LENGTH: the header alone is enough, so a body is never waited for.
func TestReaderRefusesHeadersBeforeTheBody(t *testing.T) {
	refused := 0
	for _, s := range stanzas(t, "v4-server-malformed.vec") {
		if s["layer"] != "frame" {
			continue
		}
		refused++
		frame := unhex(t, s["wire"])
		reader := &ReplyReader{}
		if reader.Feed(frame[:min(len(frame), HeaderBytes)], nil) == nil {
			t.Errorf("%s: its header was taken", s["id"])
		}
	}
	if refused == 0 {
		t.Error("no vector is refused at its header")
	}
}

func TestGreetings(t *testing.T) {
	read := 0
	for _, s := range stanzas(t, "v4-preambles.vec") {
		if s["frame"] != "greeting" {
			continue
		}
		data := unhex(t, s["wire"])
		greeting, err := ParseGreeting(data)
		if s["error"] != "" {
			if err == nil && s["layer"] != "stream" {
				t.Errorf("%s: was taken", s["id"])
			}
			continue
		}
		read++
		if err != nil {
			t.Errorf("%s: %v", s["id"], err)
			continue
		}
		want := s.fields(t)
		delete(want, "magic")
		got := Fields{
			"min_version": uint64(greeting.MinVersion), "max_version": uint64(greeting.MaxVersion),
			"mode": uint64(greeting.Mode), "slot": uint64(greeting.Slot), "nonce": greeting.Nonce,
		}
		if !reflect.DeepEqual(got, want) || !bytes.Equal(greeting.Raw, data) {
			t.Errorf("%s: %v", s["id"], got)
		}
	}
	if read == 0 {
		t.Error("no greeting was read")
	}
}

// REQ-HELLO-MAC REQ-CONN-PROOF REQ-BYTES-NONCE: over given secrets, greetings and seeds.
func TestHashes(t *testing.T) {
	seen := map[string]int{}
	for _, s := range stanzas(t, "v4-hashes.vec") {
		f := s.fields(t)
		number := func(name string) uint64 { n, _ := f[name].(uint64); return n }
		raw := func(name string) []byte { b, _ := f[name].([]byte); return b }
		var result []byte
		switch s["hash"] {
		case "client_mac":
			hello := Hello{
				Version: byte(number("version")), ClientID: number("client_id"),
				Connection: uint32(number("connection")), Nonce: raw("client_nonce"), Label: raw("label"),
			}
			result = hello.Mac(raw("secret"), raw("greeting"))
			if _, frame, err := Decode("client", hello.Frame(raw("secret"), raw("greeting"))); err != nil || !bytes.Equal(frame["mac"].([]byte), result) {
				t.Errorf("%s: the whole hello is wrong (%v)", s["id"], err)
			}
		case "proof":
			welcome := Welcome{
				Role: byte(number("role")), KeepaliveS: uint16(number("keepalive_s")),
				Fingerprint: raw("fingerprint"), Leader: raw("leader"),
			}
			result = welcome.Proof(raw("secret"), raw("greeting"), raw("client_nonce"))
		case "client_nonce":
			result = ClientNonce(raw("seed"), number("connection"))
		default:
			continue // A client only compares the fingerprint that it is told.
		}
		seen[s["hash"]]++
		if !SameProof(result, unhex(t, s["result"])) {
			t.Errorf("%s: %x", s["id"], result)
		}
	}
	if len(seen) != 3 {
		t.Errorf("vectors of %v alone", seen)
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, try := range map[string]struct {
		direction, frame string
		fields           Fields
	}{
		"a direction":     {"both", "ping", Fields{"echo": uint64(0)}},
		"a frame":         {"client", "granted", Fields{}},
		"a missing field": {"client", "ping", Fields{}},
		"a field more":    {"client", "ping", Fields{"echo": uint64(0), "token": uint64(0)}},
		"a large integer": {"client", "acquire", Fields{"request_id": uint64(1), "wait_ms": uint64(1) << 32, "lease_ms": uint64(1), "key": []byte("a")}},
		"a wrong type":    {"client", "ping", Fields{"echo": []byte("a")}},
		"no lease":        {"client", "extend", Fields{"request_id": uint64(1), "token": uint64(1), "lease_ms": uint64(0), "key": []byte("a")}},
		"a long key":      {"client", "release", Fields{"request_id": uint64(1), "token": uint64(1), "key": make([]byte, 129)}},
		"a missing tail":  {"client", "release", Fields{"request_id": uint64(1), "token": uint64(1)}},
		"too long a key":  {"client", "acquire_set", Fields{"request_id": uint64(1), "wait_ms": uint64(1), "lease_ms": uint64(1), "keys": [][]byte{{1}, make([]byte, 256)}}},
		"too many keys":   {"client", "acquire_set", Fields{"request_id": uint64(1), "wait_ms": uint64(1), "lease_ms": uint64(1), "keys": make([][]byte, 256)}},
	} {
		var refusal *Malformed
		if _, err := Encode(try.direction, try.frame, try.fields); !errors.As(err, &refusal) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
