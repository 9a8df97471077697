// The conformance adapter of the Go client: lines in, lines out (conformance/ADAPTER.md).
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	ticketing "github.com/ticketing-project/ticketing/clients/go"
)

// call is a verb that runs: in the background, or while the harness waits.
type call struct {
	cancel context.CancelFunc
	done   chan struct{}
	answer answer
}

// adapter is what the harness has named, by name.
type adapter struct {
	mu       sync.Mutex
	clients  map[string]*client
	tickets  map[string]*ticketing.Ticket
	calls    map[string]*call
	started  []*call
	opened   []*client
	baseline map[string]int
}

// startContext tells when a call has begun to wait, so that calls start in the order of the requests.
type startContext struct {
	context.Context
	waits func()
}

func (c startContext) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

func (a *adapter) forget() {
	a.clients, a.tickets, a.calls = map[string]*client{}, map[string]*ticketing.Ticket{}, map[string]*call{}
	a.started, a.opened = nil, nil
}

// run carries out one request.
func (a *adapter) run(verb string, f fields) answer {
	switch verb {
	case "await":
		return a.await(f)
	case "cancel":
		a.calls[f.word("as", "")].cancel()
		return ok()
	case "leak_check":
		return a.leakCheck()
	case "reset":
		return a.reset(5 * time.Second)
	}
	do, known := verbs[verb]
	if !known {
		return answer{status: "unsupported"}
	}
	for name := range f {
		if !strings.Contains(" "+do.takes+" detach cancel_after_ms client as ", " "+name+" ") {
			return fail("%s takes no %s", verb, name)
		}
	}
	if verb == "open" && a.baseline == nil {
		a.baseline = counts()
	}
	c := a.start(func(ctx context.Context) answer { return do.run(a, ctx, f) }, f)
	if f.number("detach", 0) == 0 {
		<-c.done
		return c.answer
	}
	a.calls[f.word("as", "")] = c
	a.started = append(a.started, c)
	return ok()
}

// start runs a verb in a goroutine and returns when it waits or has ended.
func (a *adapter) start(run func(context.Context) answer, f fields) *call {
	ctx, cancel := context.WithCancel(context.Background())
	if after, given := f["cancel_after_ms"]; given {
		time.AfterFunc(time.Duration(after.(uint64))*time.Millisecond, cancel)
	}
	c := &call{cancel: cancel, done: make(chan struct{})}
	waits := make(chan struct{})
	var once sync.Once
	go func() {
		defer close(c.done)
		defer func() {
			if problem := recover(); problem != nil {
				c.answer = fail("%v", problem)
			}
		}()
		c.answer = run(startContext{ctx, func() { once.Do(func() { close(waits) }) }})
	}()
	select {
	case <-waits:
	case <-c.done:
	}
	return c
}

func (a *adapter) await(f fields) answer {
	c := a.calls[f.word("as", "")]
	select {
	case <-c.done:
		return c.answer
	case <-time.After(time.Duration(f.number("timeout_ms", 30_000)) * time.Millisecond):
		return answer{status: "err", fields: []field{{"kind", "pending"}}}
	}
}

func (a *adapter) reset(bound time.Duration) answer {
	deadline := time.After(bound)
	for _, c := range a.opened {
		a.started = append(a.started, a.start(func(ctx context.Context) answer {
			ctx.Done()
			return judge(c.Close())
		}, nil))
	}
	waiting := a.started
	defer a.forget()
	for _, c := range waiting {
		select {
		case <-c.done:
		case <-deadline:
			return fail("a call did not end")
		}
	}
	return ok()
}

func counts() map[string]int {
	sockets := 0
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, entry := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			sockets++
		}
	}
	return map[string]int{"goroutines": runtime.NumGoroutine(), "sockets": sockets}
}

func (a *adapter) leakCheck() answer {
	deadline := time.Now().Add(2 * time.Second)
	result := ok()
	for {
		result.fields = nil
		clean := true
		for name, count := range counts() {
			more := max(0, count-a.baseline[name])
			clean = clean && (more == 0 || a.baseline == nil)
			if a.baseline == nil {
				more = 0
			}
			result.fields = append(result.fields, field{name, more})
		}
		if clean || time.Now().After(deadline) {
			return result
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Lines.

// fields are the values of a request: uint64, int64 (negative), []byte, string, or a list of them.
type fields map[string]any

func (f fields) number(name string, without uint64) uint64 {
	if value, given := f[name]; given {
		return value.(uint64)
	}
	return without
}

func (f fields) word(name, without string) string {
	if value, given := f[name]; given {
		return fmt.Sprint(value)
	}
	return without
}

// list is a field as a list, also where it came as one item.
func (f fields) list(name string) []any {
	if items, many := f[name].([]any); many {
		return items
	}
	return []any{f[name]}
}

func parse(line string) (number, verb string, f fields) {
	words := strings.Split(strings.TrimSuffix(line, "\n"), " ")
	f = fields{}
	for _, word := range words[2:] {
		name, value, _ := strings.Cut(word, "=")
		items := []any{}
		for _, text := range strings.Split(value, ",") {
			if value != "" {
				items = append(items, parseItem(text))
			}
		}
		f[name] = any(items)
		if len(items) == 1 {
			f[name] = items[0]
		}
	}
	return words[0], words[1], f
}

func parseItem(text string) any {
	if digits, isBytes := strings.CutPrefix(text, "x:"); isBytes {
		data, err := hex.DecodeString(digits)
		if err != nil {
			panic(err)
		}
		return data
	}
	if run, isRun := strings.CutPrefix(text, "r:"); isRun {
		digits, times, _ := strings.Cut(run, "*")
		count, err := strconv.Atoi(times)
		if err != nil {
			panic(err)
		}
		return parseItem("x:" + strings.Repeat(digits, count))
	}
	if value, err := strconv.ParseUint(text, 10, 64); err == nil {
		return value
	}
	if value, err := strconv.ParseInt(text, 10, 64); err == nil {
		return value
	}
	return text
}

func show(value any) string {
	switch value := value.(type) {
	case []byte:
		return "x:" + hex.EncodeToString(value)
	case [][]byte:
		parts := make([]string, len(value))
		for at, item := range value {
			parts[at] = show(item)
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(value)
}

func main() {
	a := &adapter{}
	a.forget()
	input := bufio.NewReaderSize(os.Stdin, 1<<15)
	for {
		line, err := input.ReadString('\n')
		if err != nil {
			break
		}
		number, result := a.answerLine(line)
		text := number + " " + result.status
		for _, f := range result.fields {
			text += " " + f.name + "=" + show(f.value)
		}
		os.Stdout.WriteString(text + "\n")
	}
	a.reset(2 * time.Second)
}

func (a *adapter) answerLine(line string) (number string, result answer) {
	number, _, _ = strings.Cut(line, " ")
	defer func() {
		if problem := recover(); problem != nil {
			result = fail("%v", problem)
		}
	}()
	_, verb, f := parse(line)
	return number, a.run(verb, f)
}
