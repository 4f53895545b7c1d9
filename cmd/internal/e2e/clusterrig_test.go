package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// buildOnce builds the command once for all tests that need processes.
var buildOnce = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kvcluster-e2e-")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "kvcluster")
	cmd := exec.Command("go", "build", "-o", out, "../../kvcluster")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the command: %w\n%s", err, msg)
	}
	return out, nil
})

// processes is a cluster of real node processes on loopback.
type processes struct {
	tb    testing.TB
	dir   string
	bin   string
	nodes map[string]*nodeProcess
	seed  string // membership address of the first node
}

type nodeProcess struct {
	name  string
	url   string
	cmd   *exec.Cmd
	log   string
	ended chan error
	gone  bool // ended on purpose
}

// startCluster starts n nodes, the first of which founds the cluster, and waits until
// all are ready.
func startCluster(tb testing.TB, n int, flags ...string) *processes {
	tb.Helper()
	bin, err := buildOnce()
	if err != nil {
		tb.Fatal(err)
	}
	c := &processes{tb: tb, dir: tb.TempDir(), bin: bin, nodes: map[string]*nodeProcess{}}
	tb.Cleanup(c.stop)
	for i := range n {
		c.start(fmt.Sprintf("n%d", i+1), flags...)
	}
	c.awaitBalanced(n)
	return c
}

// start starts a node, anew or with the folder that it had, and waits until it serves.
func (c *processes) start(name string, flags ...string) *nodeProcess {
	c.tb.Helper()
	p, err := c.tryStart(name, flags...)
	if err != nil {
		c.tb.Fatal(err)
	}
	return p
}

func (c *processes) tryStart(name string, flags ...string) (*nodeProcess, error) {
	p, err := c.launch(name, flags...)
	if err == nil {
		c.nodes[name] = p
	}
	return p, err
}

// begin starts a node's process.
func (c *processes) begin(name string, flags ...string) (*nodeProcess, error) {
	p := &nodeProcess{name: name, log: filepath.Join(c.dir, name+".log"), ended: make(chan error, 1)}
	data, addressFile := filepath.Join(c.dir, name), filepath.Join(c.dir, name+".address")
	if err := os.Remove(addressFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	args := []string{"serve"}
	if c.seed != "" {
		args = []string{"join", c.seed}
	}
	if !fileExists(filepath.Join(data, "addresses.json")) {
		a, err := freeAddresses(3)
		if err != nil {
			return nil, err
		}
		args = append(args, "--gossip", a[0], "--raft", a[1], "--link", a[2])
	}
	args = append(args, "--data", data, "--name", name, "--listen", "127.0.0.1:0", "--address-file", addressFile, "--probe-after", "300ms", "--restart-gap", "5ms", "--restart-gap-max", "20ms", "--lanes", "1", "--io-threads", "1", "--query-deadline", "1s")
	args = append(args, flags...)
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(c.bin, args...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.ended <- p.cmd.Wait() }()
	return p, nil
}

// launch starts a node's process and waits until it serves.
func (c *processes) launch(name string, flags ...string) (*nodeProcess, error) {
	p, err := c.begin(name, flags...)
	if err != nil {
		return nil, err
	}
	data, addressFile := filepath.Join(c.dir, name), filepath.Join(c.dir, name+".address")
	deadline := time.After(30 * time.Second)
	for p.url == "" {
		if raw, err := os.ReadFile(addressFile); err == nil {
			p.url = "http://" + string(raw)
			break
		}
		select {
		case err := <-p.ended:
			return nil, fmt.Errorf("node %s ended at once: %w\n%s", name, err, lastLines(p.log, 5))
		case <-deadline:
			_ = p.cmd.Process.Kill()
			return nil, fmt.Errorf("node %s does not serve after 30 s\n%s", name, lastLines(p.log, 30))
		case <-time.After(10 * time.Millisecond):
		}
	}
	if c.seed == "" {
		raw, err := os.ReadFile(filepath.Join(data, "addresses.json"))
		if err != nil {
			return nil, err
		}
		var at struct{ Gossip string }
		if err := json.Unmarshal(raw, &at); err != nil {
			return nil, err
		}
		c.seed = at.Gossip
	}
	return p, nil
}

// kill ends a node without a word, as a power cut would.
func (c *processes) kill(name string) {
	p := c.nodes[name]
	p.gone = true
	_ = p.cmd.Process.Kill()
	<-p.ended
	delete(c.nodes, name)
}

func (c *processes) signal(name string, s os.Signal) {
	if err := c.nodes[name].cmd.Process.Signal(s); err != nil {
		c.tb.Errorf("signal %v to %s: %v", s, name, err)
	}
}

// urls are those of the nodes that should answer.
func (c *processes) urls() (out []string) {
	for _, p := range c.nodes {
		out = append(out, p.url)
	}
	return out
}

func (c *processes) stop() {
	for _, p := range c.nodes {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, p := range c.nodes {
		select {
		case err := <-p.ended:
			if err != nil && !p.gone {
				c.tb.Errorf("node %s ended with %v\n%s", p.name, err, lastLines(p.log, 10))
			}
		case <-time.After(15 * time.Second):
			_ = p.cmd.Process.Kill()
			c.tb.Errorf("node %s did not end in 15 s\n%s", p.name, lastLines(p.log, 10))
		}
	}
	if c.tb.Failed() {
		logs, _ := filepath.Glob(filepath.Join(c.dir, "*.log"))
		for _, l := range logs {
			c.tb.Logf("--- %s\n%s", filepath.Base(l), lastLines(l, 40))
		}
	}
}

// freeAddresses returns addresses on loopback that nobody uses. A node that is ended keeps
// its ports for its next start, so they are none that the system gives out for connections
// meanwhile, and not those that other nodes take by default.
func freeAddresses(n int) (out []string, err error) {
	const lowest, number = 12_000, 18_000 // below net.ipv4.ip_local_port_range
	for try := 0; len(out) < n; try++ {
		address := fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(number))
		stream, err := net.Listen("tcp", address)
		if err == nil {
			defer stream.Close() // not chosen twice
			var packets net.PacketConn
			if packets, err = net.ListenPacket("udp", address); err == nil {
				packets.Close()
				out = append(out, address)
			}
		}
		if err != nil && try > 1000 {
			return nil, fmt.Errorf("no free ports: %w", err)
		}
	}
	return out, nil
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func lastLines(path string, n int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// memberView is a member as /members shows it.
type memberView struct {
	Name, Role, Phase string
	HTTP              string
	Alive             bool
	Partitions        int
	Ready             int `json:"ready_partitions"`
	Sources           int
}

// members asks any node.
func (c *processes) members() map[string]memberView {
	var list []memberView
	call(c.tb, "GET", c.anyURL()+"/members", nil, &list)
	out := map[string]memberView{}
	for _, m := range list {
		out[m.Name] = m
	}
	return out
}

// anyURL is that of a node that should answer.
func (c *processes) anyURL() string {
	for _, p := range c.nodes {
		return p.url
	}
	c.tb.Fatal("no node is left")
	return ""
}

// awaitBalanced waits until so many members have every partition with all its owners
// ready, and no change is under way, as every node sees it.
func (c *processes) awaitBalanced(members int) {
	c.tb.Helper()
	await(c.tb, 60*time.Second, func() string {
		for _, p := range c.nodes {
			if what := unbalanced(c.tb, p.url, members, 2); what != "" {
				return what
			}
		}
		return ""
	})
}

// holder returns a member for which want is true, the first by name.
func (c *processes) holder(want func(memberView) bool) string {
	ms := c.members()
	for _, name := range sortedNames(ms) {
		if _, running := c.nodes[name]; running && want(ms[name]) {
			return name
		}
	}
	c.tb.Fatalf("no such member among %+v", ms)
	return ""
}

func sortedNames[V any](m map[string]V) (out []string) {
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
