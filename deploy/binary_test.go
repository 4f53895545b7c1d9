package deploy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// binary is what the built command says of itself.
type binary struct {
	path     string
	commands map[string]command
	samples  []string // of a node's /metrics, name and labels
	wrongUse int      // exit code
}

// command is what the help of one command has.
type command struct {
	flags       map[string]bool // with a value?
	variables   map[string]bool
	positionals int
}

var (
	commandLine = regexp.MustCompile(`(?m)^  ([a-z]+) {2,}\S`)
	flagLine    = regexp.MustCompile(`(?m)^ +(?:-\w, +)?--(\[no-\])?([a-z][a-z0-9-]*)(=?)`)
	variable    = regexp.MustCompile(`\$([A-Z][A-Z0-9_]+)`)
	usageLine   = regexp.MustCompile(`(?m)^Usage: .*$`)
)

// build makes the binary, reads its help and the metrics of a node of a cluster of one
// that a worker is registered with.
func build(t *testing.T) *binary {
	t.Helper()
	b := &binary{path: filepath.Join(t.TempDir(), "kvcluster"), commands: map[string]command{}}
	if out, err := exec.Command("go", "build", "-o", b.path, "../cmd/kvcluster").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, m := range commandLine.FindAllStringSubmatch(b.help(t), -1) {
		b.commands[m[1]] = parseHelp(b.help(t, m[1]))
	}
	for _, name := range []string{"serve", "join", "mock", "register", "members"} {
		if len(b.commands[name].flags) < 5 {
			t.Fatalf("help of %s is not understood: %+v", name, b.commands[name])
		}
	}
	var exit *exec.ExitError
	if err := exec.Command(b.path, "serve", "--no-such-flag").Run(); !errors.As(err, &exit) {
		t.Fatalf("wrong use: %v", err)
	}
	b.wrongUse = exit.ExitCode()
	b.samples = b.scrape(t)
	return b
}

func (b *binary) help(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(b.path, append(args, "--help")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v --help: %v\n%s", args, err, out)
	}
	return string(out)
}

func parseHelp(help string) command {
	c := command{flags: map[string]bool{}, variables: map[string]bool{}}
	for _, m := range flagLine.FindAllStringSubmatch(help, -1) {
		c.flags[m[2]] = m[3] != ""
		if m[1] != "" {
			c.flags["no-"+m[2]] = false
		}
	}
	for _, m := range variable.FindAllStringSubmatch(help, -1) {
		c.variables[m[1]] = true
	}
	c.positionals = strings.Count(usageLine.FindString(help), "<")
	return c
}

// check reports what is wrong with a command line, the program's name left out.
func (b *binary) check(args []string) error {
	if len(args) == 0 {
		return errors.New("no command")
	}
	c, ok := b.commands[args[0]]
	if !ok {
		return fmt.Errorf("kvcluster has no command %q", args[0])
	}
	positionals := 0
	for rest := args[1:]; len(rest) > 0; rest = rest[1:] {
		name, isFlag := strings.CutPrefix(rest[0], "--")
		if !isFlag {
			positionals++
			continue
		}
		name, _, inline := strings.Cut(name, "=")
		valued, known := c.flags[name]
		switch {
		case !known:
			return fmt.Errorf("kvcluster %s has no flag --%s", args[0], name)
		case inline && !valued:
			return fmt.Errorf("kvcluster %s: --%s takes no value", args[0], name)
		case valued && !inline:
			if len(rest) == 1 {
				return fmt.Errorf("kvcluster %s: --%s needs a value", args[0], name)
			}
			rest = rest[1:]
		}
	}
	if positionals != c.positionals {
		return fmt.Errorf("kvcluster %s takes %d arguments, not %d: %q", args[0], c.positionals, positionals, args)
	}
	return nil
}

// scrape runs a node for a moment and returns the samples of its metrics.
func (b *binary) scrape(t *testing.T) (samples []string) {
	t.Helper()
	dir := t.TempDir()
	address := filepath.Join(dir, "address")
	args := []string{"serve", "--listen", "127.0.0.1:0", "--address-file", address, "--data", filepath.Join(dir, "data"),
		"--workers", "1=tcp://127.0.0.1:1", "--block-size", "16"}
	for _, port := range []string{"--gossip", "--raft", "--link"} {
		args = append(args, port, "127.0.0.1:0")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var log strings.Builder
	node := exec.CommandContext(ctx, b.path, args...)
	node.Stdout, node.Stderr = &log, &log
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	var wanting string
	for ctx.Err() == nil {
		if samples, wanting = metricsOf(address); wanting == "" {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	stopped := node.Process.Signal(syscall.SIGTERM)
	if err := node.Wait(); wanting != "" || stopped != nil || err != nil {
		t.Fatalf("node: %s; signal: %v, end: %v; its log:\n%s", wanting, stopped, err, log.String())
	}
	return samples
}

// metricsOf asks the node whose address is in a file; wanting is what is still missing.
func metricsOf(file string) (samples []string, wanting string) {
	at, err := os.ReadFile(file)
	if err != nil {
		return nil, err.Error()
	}
	answer, err := http.Get("http://" + string(at) + "/metrics")
	if err != nil {
		return nil, err.Error()
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(io.LimitReader(answer.Body, 8<<20))
	stream := false
	for lines.Scan() {
		if line := lines.Text(); !strings.HasPrefix(line, "#") {
			sample := line[:strings.LastIndexByte(line, ' ')]
			stream = stream || strings.HasPrefix(sample, "kvcluster_stream_sequence_gaps_total")
			samples = append(samples, sample)
		}
	}
	if !stream {
		return nil, fmt.Sprintf("no metric of a stream among %d samples", len(samples))
	}
	return samples, ""
}
