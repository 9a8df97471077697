package ticketing

import (
	"errors"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

func TestKeys(t *testing.T) {
	for _, try := range []struct{ key, prefix, sent string }{
		{"", "", ""},
		{"", "p", ""},
		{strings.Repeat("k", 129), "", ""},
		{strings.Repeat("k", 128), "p", ""},
		{"\x00\xff", "", "\x00\xff"},
		{strings.Repeat("k", 127), "p", "p" + strings.Repeat("k", 127)},
	} {
		sent, err := wireKey(try.key, try.prefix)
		if sent != try.sent || errors.Is(err, ErrInvalidArgument) != (try.sent == "") {
			t.Errorf("%q with %q: %q %v", try.key, try.prefix, sent, err)
		}
	}
}

func TestSets(t *testing.T) {
	given := []string{"b", "\xff", "a", "b"}
	sent, shown, err := wireSet(given, "p")
	if err != nil || !slices.Equal(sent, []string{"pa", "pb", "p\xff"}) || !slices.Equal(shown, []string{"a", "b", "\xff"}) {
		t.Error(sent, shown, err)
	}
	if !slices.Equal(given, []string{"b", "\xff", "a", "b"}) {
		t.Error("the caller's slice was changed")
	}
	many := make([]string, 17)
	for at := range many {
		many[at] = string(rune('a' + at))
	}
	for _, keys := range [][]string{nil, many, {"a", ""}} {
		if _, _, err := wireSet(keys, ""); !errors.Is(err, ErrInvalidArgument) {
			t.Error(keys, err)
		}
	}
	if sent, _, err := wireSet(many[:16], ""); err != nil || len(sent) != 16 {
		t.Error(err)
	}
}

// REQ-ARGS-ROUND: nanoseconds up to a millisecond.
func TestDurations(t *testing.T) {
	for value, ms := range map[time.Duration]uint32{
		1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, wire.WaitMsMax * time.Millisecond: wire.WaitMsMax, 0: 0,
	} {
		if got, err := wholeMs("x", value); got != ms || err != nil {
			t.Error(value, got, err)
		}
	}
	for _, value := range []time.Duration{-1, wire.WaitMsMax*time.Millisecond + 1} {
		if _, err := wholeMs("x", value); !errors.Is(err, ErrInvalidArgument) {
			t.Error(value, err)
		}
	}
	if _, err := leaseMs(0); !errors.Is(err, ErrInvalidArgument) {
		t.Error(err)
	}
}

func TestReferences(t *testing.T) {
	for _, key := range []string{"k", "a/b c", "\x00\xff%", strings.Repeat("-._~", 32)} {
		token, got, err := parseReference(formatReference(1<<64-1, key))
		if token != 1<<64-1 || got != key || err != nil {
			t.Errorf("%q: %q %v", key, got, err)
		}
	}
	for _, bad := range []string{
		"", "1", "1:", ":k", "0:k", "+1:k", "18446744073709551616:k", "1:a b", "1:%4", "1:%zz", "1:%+1", "x:k",
		"1:" + strings.Repeat("k", 129),
	} {
		if _, _, err := parseReference(bad); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestURLs(t *testing.T) {
	v6 := endpoint{host: "::1", port: 7}
	for text, want := range map[string][]endpoint{
		"ticketing://10.0.0.1":                     {hostA},
		"TICKETING://10.0.0.1:5225,10.0.0.2:5225/": {hostA, hostB},
		"ticketing://10.0.0.1,10.0.0.1:5225":       {hostA},
		"ticketings://[::1]:7":                     {v6},
		"ticketing://[::1]":                        {{host: "::1", port: 5225}},
		"ticketing+unix:///run/t%20x.sock":         {{path: "/run/t x.sock"}},
	} {
		got, err := parseURL(text)
		if err != nil || !slices.Equal(got.endpoints, want) || got.tls != strings.HasPrefix(text, "ticketings:") {
			t.Errorf("%s: %v %v", text, got, err)
		}
	}
	for _, bad := range []string{
		"", "10.0.0.1", "http://x", "ticketing://", "ticketing://a:0", "ticketing://a:65536", "ticketing://a:x",
		"ticketing://a/b", "ticketing://a?b", "ticketing://[::1", "ticketing://[1.2.3.4]:5", "ticketing://[::1]5",
		"ticketing://::1", "ticketing://a,,b", "ticketing://a b", "ticketing+unix://x", "ticketing+unix:///",
		"ticketing+unix:///%00", "ticketing+unix:///%zz", "ticketing://a:+1",
	} {
		if got, err := parseURL(bad); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%q: %v", bad, got)
		}
	}
	if _, err := parseURL("ticketing://user:hidden@a"); err == nil || strings.Contains(err.Error(), "hidden") {
		t.Error(err)
	}
	if v6.String() != "[::1]:7" || (endpoint{path: "/s"}).String() != "unix:/s" {
		t.Error(v6)
	}
}

func TestLabels(t *testing.T) {
	if got := makeLabel("my höst:1"); got != "my_h_st:1;go/"+Version {
		t.Error(got)
	}
	long := makeLabel(strings.Repeat("n", 100))
	if len(long) != wire.LabelBytesMax || !strings.HasSuffix(long, ";go/"+Version) {
		t.Error(long)
	}
	for _, bad := range []string{"", "a b", "ä", strings.Repeat("l", 65)} {
		if checkLabel(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestSecrets(t *testing.T) {
	for _, bad := range []string{"a\n", "a\x00", strings.Repeat("s", 1025)} {
		if err := checkSecret(bad); err == nil || strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := checkSecret(strings.Repeat("s", 1024)); err != nil {
		t.Error(err)
	}
}

// The core reads no clock, no socket and no random source, and starts no goroutine.
func TestCoreIsPure(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, "core") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		checked++
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imported := range parsed.Imports {
			path := strings.Trim(imported.Path.Value, `"`)
			if slices.Contains([]string{"net", "os", "io", "sync", "context", "crypto/rand", "math/rand", "crypto/tls"}, path) {
				t.Errorf("%s imports %s", name, path)
			}
		}
		for _, banned := range []string{"time.Now", "time.Since", "clockNs", "\tgo ", "time.After"} {
			if strings.Contains(string(text), banned) {
				t.Errorf("%s has %q", name, banned)
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d files", checked)
	}
}
