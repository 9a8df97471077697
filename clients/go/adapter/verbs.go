package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	ticketing "github.com/ticketing-project/ticketing/clients/go"
	"github.com/ticketing-project/ticketing/clients/go/internal/wire"
)

const features = "sync,codec_both,detach,cancel,cancel_after,scope,scope_cancel,background,renewal,events," +
	"tls,mtls,unix,ipv6,fractional,contend"

var errBody = errors.New("the body's own error")

type field struct {
	name  string
	value any
}

type answer struct {
	status string
	fields []field
}

func ok(fields ...field) answer { return answer{"ok", fields} }

func fail(format string, args ...any) answer {
	return answer{"fail", []field{{"text", []byte(fmt.Sprintf(format, args...))}}}
}

// judge is the answer that an error is.
func judge(err error) answer {
	var known *ticketing.Error
	var malformed *wire.Malformed
	kind := ""
	switch {
	case err == nil:
		return ok()
	case errors.As(err, &known):
		kind = string(known.Kind)
	case errors.As(err, &malformed):
		kind = "malformed"
	case errors.Is(err, context.Canceled):
		kind = "cancelled"
	case errors.Is(err, errBody):
		kind = "body"
	default:
		return fail("%v", err)
	}
	return answer{"err", []field{{"kind", kind}, {"text", []byte(err.Error())}}}
}

// client is an opened client and the kinds of the events that it has told.
type client struct {
	*ticketing.Client
	mu   sync.Mutex
	seen []string
}

const (
	acquiring = "key keys lease_ms lease_ns wait_ms wait_ns auto_extend try text "
	opening   = "api url secret client_id seed label name key_prefix lease_ms wait_ms connect_for_ms reply_timeout_ms " +
		"release_on_close fingerprint tls_ca tls_cert tls_key tls_server_name"
)

// verbs has the names that each verb takes beside those that all take.
var verbs = map[string]struct {
	takes string
	run   func(*adapter, context.Context, fields) answer
}{
	"hello": {"", func(*adapter, context.Context, fields) answer {
		return ok(field{"protocol", 1}, field{"language", "go"}, field{"client", ticketing.Version},
			field{"runtime", runtime.Version()}, field{"features", features}, field{"digest", wire.SpecDigest})
	}},
	"encode": {"dir frame version client_id connection client_nonce mac label request_id wait_ms lease_ms key keys token " +
		"acquire_id echo role keepalive_s fingerprint proof leader waited_ms reason code text", encode},
	"decode": {"dir frame wire", decode},
	"mac":    {"secret greeting version client_id connection client_nonce label", mac},
	"proof":  {"secret greeting client_nonce role keepalive_s fingerprint leader", proof},
	"nonce": {"seed connection", func(_ *adapter, _ context.Context, f fields) answer {
		return ok(field{"nonce", wire.ClientNonce(f["seed"].([]byte), f.number("connection", 0))})
	}},
	"open":    {opening, open},
	"acquire": {acquiring, acquire},
	"scope":   {acquiring + "hold_ms raise", scope},
	"contend": {acquiring + "times file", contend},
	"adopt":   {"reference lease_ms lease_ns auto_extend", adopt},
	"release": {"ticket", func(a *adapter, ctx context.Context, f fields) answer { return judge(a.ticket(f).Release(ctx)) }},
	"extend": {"ticket lease_ms lease_ns", func(a *adapter, ctx context.Context, f fields) answer {
		if err := a.ticket(f).Extend(ctx, times(f)...); err != nil {
			return judge(err)
		}
		return ok(field{"remaining_ms", a.ticket(f).Remaining().Milliseconds()})
	}},
	"hand_over": {"ticket", func(a *adapter, ctx context.Context, f fields) answer {
		reference, err := a.ticket(f).HandOver(ctx)
		if err != nil {
			return judge(err)
		}
		return ok(field{"reference", reference})
	}},
	"ticket": {"ticket", func(a *adapter, _ context.Context, f fields) answer { return ticketFields(a.ticket(f)) }},
	"wait_lost": {"ticket timeout_ms", func(a *adapter, ctx context.Context, f fields) answer {
		select {
		case <-a.ticket(f).Done():
			return ok()
		case <-time.After(time.Duration(f.number("timeout_ms", 30_000)) * time.Millisecond):
			return answer{"err", []field{{"kind", "pending"}}}
		case <-ctx.Done():
			return judge(ctx.Err())
		}
	}},
	"ping": {"", func(a *adapter, ctx context.Context, f fields) answer { return judge(a.client(f).Ping(ctx)) }},
	"close": {"", func(a *adapter, ctx context.Context, f fields) answer {
		ctx.Done() // Close takes no context; this says that it has begun.
		return judge(a.client(f).Close())
	}},
	"events": {"", func(a *adapter, _ context.Context, f fields) answer {
		c := a.client(f)
		c.mu.Lock()
		defer c.mu.Unlock()
		words := strings.Join(c.seen, ",")
		c.seen = nil
		return ok(field{"events", words})
	}},
}

// named is a client or ticket that the harness has named.
func named[T any](a *adapter, all map[string]T, name string) T {
	a.mu.Lock()
	defer a.mu.Unlock()
	found, has := all[name]
	if !has {
		panic("nothing is named " + name)
	}
	return found
}

func (a *adapter) client(f fields) *client { return named(a, a.clients, f.word("client", "c")) }

func (a *adapter) ticket(f fields) *ticketing.Ticket {
	return named(a, a.tickets, f.word("ticket", "t"))
}

func (a *adapter) keep(f fields, ticket *ticketing.Ticket) answer {
	a.mu.Lock()
	a.tickets[f.word("as", "t")] = ticket
	a.mu.Unlock()
	return ticketFields(ticket)
}

func ticketFields(t *ticketing.Ticket) answer {
	var keys [][]byte
	for _, key := range t.Keys() {
		keys = append(keys, []byte(key))
	}
	lost := 0
	if errors.Is(t.Err(), ticketing.ErrLost) {
		lost = 1
	}
	return ok(field{"key", []byte(t.Key())}, field{"keys", keys}, field{"token", t.Token()},
		field{"remaining_ms", t.Remaining().Milliseconds()}, field{"lost", lost})
}

// duration is a number of units, cut to what the type holds.
func duration(value any, unit time.Duration) time.Duration {
	if number, positive := value.(uint64); positive {
		return time.Duration(min(number, uint64(math.MaxInt64/unit))) * unit
	}
	return time.Duration(max(value.(int64), int64(math.MinInt64/unit))) * unit
}

func times(f fields) []ticketing.AcquireOption {
	var options []ticketing.AcquireOption
	for suffix, unit := range map[string]time.Duration{"_ms": time.Millisecond, "_ns": 1} {
		if value, given := f["lease"+suffix]; given {
			options = append(options, ticketing.Lease(duration(value, unit)))
		}
		if value, given := f["wait"+suffix]; given {
			options = append(options, ticketing.WaitTimeout(duration(value, unit)))
		}
	}
	if _, given := f["auto_extend"]; given {
		options = append(options, ticketing.AutoExtend(f.number("auto_extend", 0) == 1))
	}
	return options
}

// keysOf is the keys of an acquire, and the options of it.
func keysOf(f fields) ([]string, []ticketing.AcquireOption) {
	name, options := "key", times(f)
	if _, many := f["keys"]; many {
		name = "keys"
		if f.number("try", 0) == 1 { // The try form is for one key; for a set a wait of 0 is its try.
			options = append(options, ticketing.WaitTimeout(0))
		}
	}
	var keys []string
	for _, key := range f.list(name) {
		keys = append(keys, string(key.([]byte)))
	}
	return keys, options
}

func (a *adapter) acquireTicket(ctx context.Context, f fields) (*ticketing.Ticket, error) {
	keys, options := keysOf(f)
	c := a.client(f)
	if _, many := f["keys"]; many {
		return c.AcquireSet(ctx, keys, options...)
	}
	if f.number("try", 0) == 1 {
		return c.TryAcquire(ctx, keys[0], options...)
	}
	return c.Acquire(ctx, keys[0], options...)
}

func acquire(a *adapter, ctx context.Context, f fields) answer {
	ticket, err := a.acquireTicket(ctx, f)
	if err != nil {
		return judge(err)
	}
	return a.keep(f, ticket)
}

func adopt(a *adapter, ctx context.Context, f fields) answer {
	ticket, err := a.client(f).Adopt(ctx, f.word("reference", ""), times(f)...)
	if err != nil {
		return judge(err)
	}
	return a.keep(f, ticket)
}

func scope(a *adapter, ctx context.Context, f fields) answer {
	keys, options := keysOf(f)
	if _, many := f["keys"]; !many && f.number("try", 0) == 1 {
		options = append(options, ticketing.WaitTimeout(0))
	}
	ended := ""
	err := a.client(f).WithSet(ctx, keys, func(inner context.Context, ticket *ticketing.Ticket) error {
		a.keep(f, ticket)
		select {
		case <-inner.Done():
			ended = "cancelled"
			return inner.Err()
		case <-time.After(time.Duration(f.number("hold_ms", 0)) * time.Millisecond):
			ended = "done"
		}
		if f.number("raise", 0) == 1 {
			return errBody
		}
		return nil
	}, options...)
	result := judge(err)
	if err == nil || errors.Is(err, ticketing.ErrLost) && ended != "" {
		result.fields = append(result.fields, field{"body", ended})
	}
	return result
}

func contend(a *adapter, ctx context.Context, f fields) answer {
	path := string(f["file"].([]byte))
	for range f.number("times", 0) {
		ticket, err := a.acquireTicket(ctx, f)
		if err == nil {
			err = count(path, ticket.Token())
		}
		if err == nil {
			err = ticket.Release(ctx)
		}
		if err != nil {
			return judge(err)
		}
	}
	return ok()
}

// count adds one to the number in a file, and a token to the list beside it.
func count(path string, token uint64) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	number, _ := strconv.Atoi(string(text)) // An empty file counts as 0.
	if err := os.WriteFile(path, []byte(strconv.Itoa(number+1)), 0o600); err != nil {
		return err
	}
	tokens, err := os.OpenFile(path+".tokens", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer tokens.Close()
	_, err = fmt.Fprintf(tokens, "%d\n", token)
	return err
}

func open(a *adapter, ctx context.Context, f fields) answer {
	c := &client{}
	options := []ticketing.Option{ticketing.OnEvent(func(e ticketing.Event) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.seen = append(c.seen, e.EventKind())
	})}
	for _, option := range times(f) {
		options = append(options, option)
	}
	url := ""
	for name, value := range f {
		data, _ := value.([]byte)
		switch name {
		case "url":
			url = string(data)
		case "secret":
			options = append(options, ticketing.Secret(string(data)))
		case "label":
			options = append(options, ticketing.Label(string(data)))
		case "name":
			options = append(options, ticketing.Name(string(data)))
		case "key_prefix":
			options = append(options, ticketing.KeyPrefix(string(data)))
		case "fingerprint":
			options = append(options, ticketing.Fingerprint(data))
		case "client_id":
			options = append(options, ticketing.ClientID(value.(uint64)))
		case "seed":
			options = append(options, ticketing.Seed([16]byte(data)))
		case "connect_for_ms":
			options = append(options, ticketing.ConnectFor(duration(value, time.Millisecond)))
		case "reply_timeout_ms":
			options = append(options, ticketing.ReplyTimeout(duration(value, time.Millisecond)))
		case "release_on_close":
			options = append(options, ticketing.ReleaseOnClose(value.(uint64) == 1))
		}
	}
	config, err := tlsOf(f)
	if err != nil {
		return judge(err)
	}
	if config != nil {
		options = append(options, ticketing.TLS(config))
	}
	if c.Client, err = ticketing.Dial(ctx, url, options...); err != nil {
		return judge(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clients[f.word("as", "c")] = c
	a.opened = append(a.opened, c)
	return ok()
}

// tlsOf makes a config of the paths that the harness gives; nil where it gives none.
func tlsOf(f fields) (*tls.Config, error) {
	text := func(name string) string { data, _ := f[name].([]byte); return string(data) }
	config := &tls.Config{ServerName: text("tls_server_name")}
	if ca := text("tls_ca"); ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(pem)
	}
	if cert := text("tls_cert"); cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, text("tls_key"))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if config.ServerName == "" && config.RootCAs == nil && config.Certificates == nil {
		return nil, nil
	}
	return config, nil
}

// Codec plane.

func encode(_ *adapter, _ context.Context, f fields) answer {
	values := wire.Fields{}
	for name, value := range f {
		if name != "dir" && name != "frame" {
			values[name] = value
		}
	}
	if _, many := f["keys"]; many {
		keys := [][]byte{}
		for _, key := range f.list("keys") {
			keys = append(keys, key.([]byte))
		}
		values["keys"] = keys
	}
	data, err := wire.Encode(f.word("dir", ""), f.word("frame", ""), values)
	if err != nil {
		return judge(err)
	}
	return ok(field{"wire", data})
}

func decode(_ *adapter, _ context.Context, f fields) answer {
	data := f["wire"].([]byte)
	if f.word("frame", "") == "greeting" {
		g, err := wire.ParseGreeting(data)
		if err != nil {
			return judge(err)
		}
		return ok(field{"frame", "greeting"}, field{"min_version", g.MinVersion}, field{"max_version", g.MaxVersion},
			field{"mode", g.Mode}, field{"slot", g.Slot}, field{"nonce", g.Nonce})
	}
	name, values, err := wire.Decode(f.word("dir", ""), data)
	if err != nil {
		return judge(err)
	}
	result := ok(field{"frame", name})
	for name, value := range values {
		result.fields = append(result.fields, field{name, value})
	}
	return result
}

func mac(_ *adapter, _ context.Context, f fields) answer {
	hello := wire.Hello{
		Version: byte(f.number("version", 0)), ClientID: f.number("client_id", 0),
		Connection: uint32(f.number("connection", 0)), Nonce: f["client_nonce"].([]byte), Label: f["label"].([]byte),
	}
	return ok(field{"mac", hello.Mac(f["secret"].([]byte), f["greeting"].([]byte))})
}

func proof(_ *adapter, _ context.Context, f fields) answer {
	welcome := wire.Welcome{
		Role: byte(f.number("role", 0)), KeepaliveS: uint16(f.number("keepalive_s", 0)),
		Fingerprint: f["fingerprint"].([]byte), Leader: f["leader"].([]byte),
	}
	return ok(field{"proof", welcome.Proof(f["secret"].([]byte), f["greeting"].([]byte), f["client_nonce"].([]byte))})
}
