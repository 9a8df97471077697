package ticketing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long tests wait for what has to happen, on a machine that does much else.
const patience = 60 * time.Second

// testServer is a real server in a process of its own.
type testServer struct {
	t       testing.TB
	args    []string
	env     []string
	command *exec.Cmd
	ready   map[string]string
	url     string
}

// shared is one server for all tests that need nothing special of it.
var shared *testServer

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	for _, name := range []string{"TICKETING_URL", "TICKETING_SECRET", "TICKETING_NAME"} {
		os.Unsetenv(name)
	}
	code := m.Run()
	if shared != nil {
		shared.end(syscall.SIGKILL)
	}
	os.Exit(code)
}

func sharedServer(t testing.TB) *testServer {
	t.Helper()
	if shared == nil {
		shared = launch(t, nil)
	}
	shared.t = t
	return shared
}

// startServer starts a server that ends with the test.
func startServer(t testing.TB, env []string, args ...string) *testServer {
	t.Helper()
	s := launch(t, env, args...)
	t.Cleanup(func() { s.end(syscall.SIGKILL) })
	return s
}

func launch(t testing.TB, env []string, args ...string) *testServer {
	t.Helper()
	s := &testServer{t: t, args: args, env: env}
	if !strings.Contains(strings.Join(args, " "), "--listen") {
		s.args = append(s.args, "--listen", "127.0.0.1:0")
	}
	s.start()
	return s
}

// start starts the process; it fails the test where there is no server to start.
func (s *testServer) start() {
	s.t.Helper()
	words := strings.Fields(os.Getenv("TICKETING_TEST_SERVER"))
	if len(words) == 0 {
		words = []string{"python3", "-m", "ticketing_server"}
	}
	dir, err := os.MkdirTemp("", "ticketing-go")
	if err != nil {
		s.t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	readyFile := filepath.Join(dir, "ready")
	output, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer output.Close()
	words = append(append(words, s.args...), "--ready-file", readyFile)
	s.command = exec.Command(words[0], words[1:]...)
	s.command.Env = append(os.Environ(), s.env...)
	s.command.Stdout, s.command.Stderr = output, output
	if err := s.command.Start(); err != nil {
		s.t.Fatalf("%v: %v (TICKETING_TEST_SERVER names the command that starts a server)", words, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.command.Wait() }()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(readyFile)
		if err == nil && strings.Contains(string(text), "pid=") {
			s.ready = map[string]string{}
			for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
				name, value, _ := strings.Cut(line, "=")
				s.ready[name] = value
			}
			s.url = s.ready["url"]
			return
		}
		if len(ended) > 0 || time.Now().After(deadline) {
			said, _ := os.ReadFile(output.Name())
			s.t.Fatalf("the server did not start: %v\n%s", words, said)
		}
	}
}

// end sends a signal and waits until the process is gone.
func (s *testServer) end(sig syscall.Signal) {
	s.command.Process.Signal(sig)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if s.command.Process.Signal(syscall.Signal(0)) != nil {
			return
		}
	}
	panic("the server does not end")
}

// startAgain starts it on the same port.
func (s *testServer) startAgain() {
	s.t.Helper()
	s.args = []string{"--listen", s.ready["listen"]}
	s.start()
}

// counts are the tickets and waiters that the server has.
func (s *testServer) counts() (tickets, waiters int) {
	s.t.Helper()
	response, err := http.Get("http://" + s.ready["http-listen"] + "/status")
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	var status struct{ Tickets, Waiters int }
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		s.t.Fatal(err)
	}
	return status.Tickets, status.Waiters
}

// expectEmpty waits until the server has neither ticket nor waiter.
func (s *testServer) expectEmpty() {
	s.t.Helper()
	s.eventually("the server is empty", func() bool {
		tickets, waiters := s.counts()
		return tickets == 0 && waiters == 0
	})
}

// eventually waits until something holds that nothing in reach announces.
func (s *testServer) eventually(what string, holds func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not so: %s", what)
		}
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	return ctx
}

// dial opens a client that is closed with the test.
func (s *testServer) dial(options ...Option) *Client {
	s.t.Helper()
	c, err := Dial(testContext(s.t), s.url, options...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

func expect(t testing.TB, err, sentinel error) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Fatalf("got %v, not %v", err, sentinel)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// resources are the goroutines and sockets of this process.
func resources() (goroutines, sockets int) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, entry := range entries {
		to, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err == nil && strings.HasPrefix(to, "socket:") {
			sockets++
		}
	}
	return runtime.NumGoroutine(), sockets
}

// expectNoLeak returns what waits until no more goroutines and sockets are there than now.
func expectNoLeak(t testing.TB) func() {
	http.DefaultClient.CloseIdleConnections()
	goroutines, sockets := resources()
	return func() {
		t.Helper()
		http.DefaultClient.CloseIdleConnections()
		var g, s int
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if g, s = resources(); g <= goroutines && s <= sockets {
				return
			}
		}
		stacks := make([]byte, 1<<16)
		t.Fatalf("%d goroutines and %d sockets, before %d and %d\n%s",
			g, s, goroutines, sockets, stacks[:runtime.Stack(stacks, true)])
	}
}

func keyOf(t testing.TB, parts ...any) string { return t.Name() + fmt.Sprint(parts...) }
