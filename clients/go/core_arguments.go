package ticketing

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

// Checks of what callers give, before anything is sent. Each refusal says what was wrong, what was
// given and what is taken.

// wireKey is a key as it goes over the wire, prefix included.
func wireKey(key, prefix string) (string, error) {
	if key == "" {
		return "", invalid("the key is empty: it takes 1 to %d bytes", wire.KeyBytesMax)
	}
	if length := len(prefix) + len(key); length > wire.KeyBytesMax {
		counted := ""
		if prefix != "" {
			counted = " with its prefix"
		}
		return "", invalid("the key has %d bytes%s: it takes 1 to %d", length, counted, wire.KeyBytesMax)
	}
	return prefix + key, nil
}

// wireSet is the different keys of a set as sent, and as given, both sorted by unsigned bytes.
func wireSet(keys []string, prefix string) (sent, shown []string, err error) {
	shown = slices.Clone(keys)
	slices.Sort(shown)
	shown = slices.Compact(shown)
	if len(shown) < 1 || len(shown) > wire.SetKeysMax {
		return nil, nil, invalid("the set has %d different keys: it takes 1 to %d", len(shown), wire.SetKeysMax)
	}
	sent = make([]string, len(shown))
	for at, key := range shown {
		if sent[at], err = wireKey(key, prefix); err != nil {
			return nil, nil, err
		}
	}
	return sent, shown, nil
}

func checkPrefix(prefix string) error {
	if len(prefix) >= wire.KeyBytesMax {
		return invalid("the key prefix has %d bytes: it takes up to %d, so that a key fits behind it",
			len(prefix), wire.KeyBytesMax-1)
	}
	return nil
}

// wholeMs is a duration in milliseconds, rounded up.
func wholeMs(name string, value time.Duration) (uint32, error) {
	if value < 0 {
		return 0, invalid("%s is %v: it takes nothing negative", name, value)
	}
	if value > wire.WaitMsMax*time.Millisecond {
		return 0, invalid("%s is %v: it takes up to %v", name, value, wire.WaitMsMax*time.Millisecond)
	}
	return uint32((value + time.Millisecond - 1) / time.Millisecond), nil
}

func leaseMs(value time.Duration) (uint32, error) {
	ms, err := wholeMs("the lease", value)
	if err == nil && ms == 0 {
		err = invalid("the lease is 0: it takes more")
	}
	return ms, err
}

const upperHex = "0123456789ABCDEF"

// formatReference is what HandOver returns: the token, then the first key as sent.
func formatReference(token uint64, key string) string {
	var b strings.Builder
	b.WriteString(strconv.FormatUint(token, 10))
	b.WriteByte(':')
	for at := range len(key) {
		c := key[at]
		if isUnreserved(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', upperHex[c>>4], upperHex[c&15]})
		}
	}
	return b.String()
}

func isUnreserved(c byte) bool {
	return 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9' ||
		strings.IndexByte("-._~", c) >= 0
}

// parseReference is token and key of a reference.
func parseReference(reference string) (uint64, string, error) {
	digits, escaped, _ := strings.Cut(reference, ":")
	token, err := strconv.ParseUint(digits, 10, 64)
	key, ok := unescape(escaped)
	if err != nil || token == 0 || !ok || key == "" || len(key) > wire.KeyBytesMax {
		return 0, "", invalid("the reference %q is not one that HandOver returned: <token>:<key>", reference)
	}
	return token, key, nil
}

func unescape(text string) (string, bool) {
	var b strings.Builder
	for at := 0; at < len(text); at++ {
		switch c := text[at]; {
		case isUnreserved(c):
			b.WriteByte(c)
		case c == '%' && at+2 < len(text):
			value, err := strconv.ParseUint(text[at+1:at+3], 16, 8)
			if err != nil {
				return "", false
			}
			b.WriteByte(byte(value))
			at += 2
		default:
			return "", false
		}
	}
	return b.String(), true
}

// makeLabel is the label of a client: its name, cleaned and cut to fit, then language and version.
func makeLabel(name string) string {
	tail := ";go/" + Version
	clean := strings.Map(func(r rune) rune {
		if r < 0x21 || r > 0x7E {
			return '_'
		}
		return r
	}, name)
	return clean[:min(len(clean), wire.LabelBytesMax-len(tail))] + tail
}

// checkLabel checks a label that is given whole, for tests.
func checkLabel(label string) error {
	if len(label) < wire.LabelBytesMin || len(label) > wire.LabelBytesMax || !wire.IsLabelText([]byte(label)) {
		return invalid("the label is %q: it takes %d to %d bytes of printable ASCII without space",
			label, wire.LabelBytesMin, wire.LabelBytesMax)
	}
	return nil
}

// checkSecret checks a secret. The text of its error never shows it.
func checkSecret(secret string) error {
	if len(secret) > wire.SecretBytesMax {
		return invalid("the secret has %d bytes: it takes up to %d", len(secret), wire.SecretBytesMax)
	}
	if strings.ContainsAny(secret, "\x00\r\n") {
		return invalid("the secret has a NUL or a line end in it")
	}
	return nil
}

// sanitised is text from elsewhere, with anything but printable ASCII as `?`.
func sanitised(text string) string {
	data := []byte(text)
	for at, c := range data {
		if c < 0x20 || c > 0x7E {
			data[at] = '?'
		}
	}
	return string(data)
}

// quoted shows keys in a message.
func quoted(keys []string) string {
	parts := make([]string, len(keys))
	for at, key := range keys {
		parts[at] = strconv.Quote(key)
	}
	return strings.Join(parts, ", ")
}
