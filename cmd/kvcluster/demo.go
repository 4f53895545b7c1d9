package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/cmd/internal/client"
	"github.com/kvcluster/kvcluster/cmd/internal/live"
)

type demoCmd struct {
	Workers  int           `help:"Number of mock workers." default:"8" short:"n" env:"-"`
	Listen   string        `help:"HTTP address of the node; port 0 lets the system choose." default:"127.0.0.1:8090"`
	Trace    string        `help:"Trace to play (Mooncake JSON lines); without it one is generated." type:"existingfile"`
	Speedup  float64       `help:"Seconds of the trace played in one second." default:"20"`
	Duration time.Duration `help:"Stop after this time; 0 = go on until interrupted." default:"0"`
	Period   time.Duration `help:"Time between two looks." default:"1s"`
}

// Help says what will be seen.
func (demoCmd) Help() string {
	return `Starts a node and mock workers in mixed formats as processes of their own, shows what
the node sees and the answer to a sample query. Ctrl-C ends everything.

Examples:
  kvcluster demo
  kvcluster demo --workers 32 --duration 30s`
}

// sampleRequests is the length of the generated trace; mock and demo must make the
// same one, so that the sample prompt is one that the workers serve.
const sampleRequests = 2000

// Run starts the processes and watches them until interrupted, or until one ends.
func (c *demoCmd) Run(a *app) error {
	if c.Workers < 1 || c.Speedup < 0 || c.Period <= 0 {
		return fmt.Errorf("%w: --workers must be at least 1, --period above 0 and --speedup not below", errUsage)
	}
	prompt, err := c.samplePrompt()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kvcluster-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	if c.Duration > 0 {
		ctx, cancel = context.WithTimeout(ctx, c.Duration)
		defer cancel()
	}
	addressFile := filepath.Join(dir, "address")
	node, err := c.start(dir, "node", "serve", "--listen", c.Listen, "--address-file", addressFile, "--name", "demo")
	if err != nil {
		return err
	}
	defer node.stop()
	url, err := node.awaitAddress(ctx, addressFile)
	if err != nil {
		return err
	}
	promptFile := filepath.Join(dir, "prompt.json")
	if err := writePrompt(promptFile, prompt); err != nil {
		return err
	}
	args := []string{"mock", "--quiet", "--register", url, "--workers", strconv.Itoa(c.Workers), "--model", "demo", "--repeat=-1", "--speedup", strconv.FormatFloat(c.Speedup, 'g', -1, 64)}
	if c.Trace != "" {
		args = append(args, "--trace", c.Trace)
	} else {
		args = append(args, "--generate", "--requests", strconv.Itoa(sampleRequests))
	}
	mock, err := c.start(dir, "mock", args...)
	if err != nil {
		return err
	}
	defer mock.stop()
	return c.watch(ctx, a, url, promptFile, prompt, node, mock)
}

// watch draws until ctx is done; when a process ends by itself, that is the error.
func (c *demoCmd) watch(ctx context.Context, a *app, url, promptFile string, prompt []uint32, processes ...*process) error {
	cl, err := client.New(url, 10*time.Second)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, p := range processes {
		go func() {
			<-p.ended
			cancel()
		}()
	}
	fmt.Fprintf(a.stdout, "node at %s, %d mock workers; Ctrl-C ends all\n", url, c.Workers)
	s := &sample{cl: cl, prompt: prompt, line: fmt.Sprintf("kvcluster query --server %s --model demo --file %s", url, promptFile)}
	go s.run(ctx, c.Period)
	err = live.Watch(ctx, a.stdout, cl, c.Period, 0, s.text)
	if err == nil || ctx.Err() != nil {
		fmt.Fprintln(a.stdout)
		fmt.Fprint(a.stdout, s.text())
	}
	for _, p := range processes {
		if exited := p.failure(); exited != nil {
			return exited
		}
	}
	return err
}

// samplePrompt is the longest prompt among the first requests of the trace.
func (c *demoCmd) samplePrompt() ([]uint32, error) {
	var t *trace.Trace
	var err error
	if c.Trace != "" {
		t, err = trace.ReadFile(c.Trace)
	} else {
		t, err = trace.Generate(trace.DefaultGenerate(sampleRequests))
	}
	if err != nil {
		return nil, err
	}
	best := 0
	for i := range min(len(t.Requests), 20) {
		if n := t.PromptTokens(i); n > t.PromptTokens(best) && n < 10_000 {
			best = i
		}
	}
	return t.AppendTokens(nil, best), nil
}

func writePrompt(path string, prompt []uint32) error {
	raw, err := json.Marshal(prompt)
	if err == nil {
		err = os.WriteFile(path, raw, 0o644)
	}
	if err != nil {
		return fmt.Errorf("demo: write the sample prompt: %w", err)
	}
	return nil
}

// sample asks one query again and again and keeps its last answer as text.
type sample struct {
	cl     *client.Client
	prompt []uint32
	line   string
	answer atomic.Pointer[string]
}

func (s *sample) run(ctx context.Context, period time.Duration) {
	for {
		var ans scoreAnswer
		err := s.cl.Post(ctx, "/query", map[string]any{"model_name": "demo", "token_ids": s.prompt}, &ans)
		if ctx.Err() != nil {
			return
		}
		var b strings.Builder
		if err != nil {
			fmt.Fprintf(&b, "%v (workers are being registered)\n", err)
		} else if err := printScores(&b, ans, len(s.prompt)); err != nil {
			return
		}
		text := b.String()
		s.answer.Store(&text)
		select {
		case <-ctx.Done():
			return
		case <-time.After(period):
		}
	}
}

func (s *sample) text() string {
	out := fmt.Sprintf("sample query (%d tokens): %s\n", len(s.prompt), s.line)
	if p := s.answer.Load(); p != nil {
		out += *p
	}
	return out
}

// process is a child with its output in a file.
type process struct {
	name     string
	cmd      *exec.Cmd
	log      string
	ended    chan struct{}
	err      error // after ended is closed
	stopping atomic.Bool
}

func (c *demoCmd) start(dir, name string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("demo: find my own program: %w", err)
	}
	p := &process{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	defer out.Close()
	p.cmd = exec.Command(self, args...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// A process group of its own: Ctrl-C reaches the demo alone, which ends the mock
	// workers first; and nothing outlives the demo.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("demo: start the %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// awaitAddress returns the node's URL once it serves.
func (p *process) awaitAddress(ctx context.Context, file string) (string, error) {
	deadline := time.After(15 * time.Second)
	for {
		if raw, err := os.ReadFile(file); err == nil {
			return "http://" + string(raw), nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-p.ended:
			return "", p.failure()
		case <-deadline:
			return "", fmt.Errorf("demo: the node did not start in 15 s:\n%s", tail(p.log))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// failure says why the process ended by itself, or nil.
func (p *process) failure() error {
	select {
	case <-p.ended:
	default:
		return nil
	}
	if p.stopping.Load() {
		return nil
	}
	return fmt.Errorf("demo: the %s ended (%v):\n%s", p.name, errors.Join(p.err), tail(p.log))
}

// stop asks the process to end and, after ten seconds, makes it.
func (p *process) stop() {
	p.stopping.Store(true)
	_ = p.cmd.Process.Signal(os.Interrupt) // fails when it has ended: fine
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// tail returns the last lines of a file.
func tail(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
