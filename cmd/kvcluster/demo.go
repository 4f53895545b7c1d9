package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/cmd/internal/client"
	"github.com/kvcluster/kvcluster/cmd/internal/live"
	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/cmd/internal/process"
)

type demoCmd struct {
	Nodes    int           `help:"Number of nodes." default:"3" env:"-"`
	Workers  int           `help:"Number of mock workers." default:"8" short:"n" env:"-"`
	Listen   string        `help:"HTTP address of the first node, the others take the ports after it; port 0 lets the system choose." default:"127.0.0.1:8090"`
	Trace    string        `help:"Trace to play (Mooncake JSON lines); without it one is generated." type:"existingfile"`
	Speedup  float64       `help:"Seconds of the trace played in one second." default:"20"`
	Duration time.Duration `help:"Stop after this time; 0 = go on until interrupted." default:"0"`
	Period   time.Duration `help:"Time between two looks." default:"1s"`
}

// Help says what will be seen.
func (demoCmd) Help() string {
	return `Starts a cluster of nodes and mock workers in mixed formats as processes of their own,
shows what they see and the answer to a sample query. Kill a node's process (its number is
shown) and watch: the others go on. Ctrl-C ends everything.

Examples:
  kvcluster demo
  kvcluster demo --workers 32 --duration 30s`
}

// sampleRequests is the length of the generated trace; mock and demo must make the
// same one, so that the sample prompt is one that the workers serve.
const sampleRequests = 2000

// Run starts the processes and watches them until interrupted, or until one ends.
func (c *demoCmd) Run(a *app) error {
	if c.Nodes < 1 || c.Workers < 1 || c.Speedup < 0 || c.Period <= 0 {
		return fmt.Errorf("%w: --nodes and --workers must be at least 1, --period above 0 and --speedup not below", errUsage)
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
	nodes, err := c.startNodes(ctx, a, dir)
	defer func() {
		var all []*process.Process
		for _, n := range nodes {
			all = append(all, n.Process)
		}
		process.StopAll(all)
	}()
	if err != nil {
		return err
	}
	var urls []string
	for _, n := range nodes {
		urls = append(urls, n.url)
	}
	promptFile := filepath.Join(dir, "prompt.json")
	if err := writePrompt(promptFile, prompt); err != nil {
		return err
	}
	args := []string{"mock", "--quiet", "--register", urls[0], "--workers", strconv.Itoa(c.Workers), "--model", "demo", "--repeat=-1", "--speedup", strconv.FormatFloat(c.Speedup, 'g', -1, 64)}
	if c.Trace != "" {
		args = append(args, "--trace", c.Trace)
	} else {
		args = append(args, "--generate", "--requests", strconv.Itoa(sampleRequests))
	}
	mock, err := startSelf(dir, "mock", args...)
	if err != nil {
		return err
	}
	defer mock.Stop()
	return c.watch(ctx, a, urls, promptFile, prompt, nodes, mock)
}

// startNodes starts the cluster: the first node founds it, the others join.
func (c *demoCmd) startNodes(ctx context.Context, a *app, dir string) (nodes []*demoNode, err error) {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("%w: --listen %q is not host:port", errUsage, c.Listen)
	}
	first, err := strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("%w: --listen: port %q is not a number", errUsage, port)
	}
	seed := ""
	for i := range c.Nodes {
		name := fmt.Sprintf("n%d", i+1)
		listen := c.Listen
		if first > 0 {
			listen = net.JoinHostPort(host, strconv.Itoa(first+i))
		}
		data, addressFile := filepath.Join(dir, name), filepath.Join(dir, name+".address")
		args := []string{"serve"}
		if i > 0 {
			args = []string{"join", seed}
		}
		// Free ports, also for who joins: the usual ones are left to a real node beside the demo.
		args = append(args, "--gossip", "127.0.0.1:0", "--raft", "127.0.0.1:0", "--link", "127.0.0.1:0", "--data", data, "--listen", listen, "--address-file", addressFile, "--name", name, "--cluster", "demo")
		p, err := startSelf(dir, name, args...)
		if err != nil {
			return nodes, err
		}
		n := &demoNode{Process: p}
		nodes = append(nodes, n)
		address, err := p.AwaitFile(ctx, addressFile)
		if err != nil {
			return nodes, fmt.Errorf("demo: %w", err)
		}
		n.url = "http://" + address
		fmt.Fprintf(a.stdout, "node %s at %s, process %d\n", name, n.url, n.PID)
		if i == 0 {
			if seed, err = node.GossipAddress(data); err != nil {
				return nodes, err
			}
		}
	}
	return nodes, nil
}

// watch draws until ctx is done. A node that ends is the point of a demo of several; when
// all have, or the workers have, that is the error.
func (c *demoCmd) watch(ctx context.Context, a *app, urls []string, promptFile string, prompt []uint32, nodes []*demoNode, mock *process.Process) error {
	cl, err := client.New(strings.Join(urls, ","), 10*time.Second)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var left atomic.Int32
	left.Store(int32(len(nodes)))
	for _, p := range nodes {
		go func() {
			<-p.Ended
			if left.Add(-1) == 0 {
				cancel()
			}
		}()
	}
	go func() {
		<-mock.Ended
		cancel()
	}()
	fmt.Fprintf(a.stdout, "%d mock workers; Ctrl-C ends all\n", c.Workers)
	s := &sample{cl: cl, prompt: prompt, line: fmt.Sprintf("kvcluster query --server %s --model demo --file %s", strings.Join(urls, ","), promptFile)}
	go s.run(ctx, c.Period)
	err = live.Watch(ctx, a.stdout, cl, c.Period, 0, func() string { return processLines(nodes) + s.text() })
	if err == nil || ctx.Err() != nil {
		fmt.Fprintln(a.stdout)
		fmt.Fprint(a.stdout, s.text())
	}
	if left.Load() == 0 {
		for _, p := range nodes {
			if exited := p.Failure(); exited != nil {
				return exited
			}
		}
	}
	if exited := mock.Failure(); exited != nil {
		return exited
	}
	return err
}

// processLines tells which process is which node.
func processLines(nodes []*demoNode) string {
	var b strings.Builder
	for _, n := range nodes {
		state := fmt.Sprintf("process %d   try: kill -9 %d", n.PID, n.PID)
		select {
		case <-n.Ended:
			state = "ended"
		default:
		}
		fmt.Fprintf(&b, "%s at %s   %s\n", n.Name, n.url, state)
	}
	return b.String() + "\n"
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

// demoNode is a node's process.
type demoNode struct {
	*process.Process
	url string
}

// startSelf runs this program with other arguments.
func startSelf(dir, name string, args ...string) (*process.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("demo: find my own program: %w", err)
	}
	p, err := process.Start(name, filepath.Join(dir, name+".log"), append([]string{self}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	return p, nil
}
