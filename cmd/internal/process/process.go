// Package process runs programs as children: output in a file, an end that is noticed,
// and nothing that outlives its parent. Demos and benchmarks start nodes with it.
package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Process is a child that was started. Its methods may be called from any goroutine.
type Process struct {
	Name string
	Log  string // file with its output
	PID  int
	// Ended is closed when it is gone.
	Ended    chan struct{}
	cmd      *exec.Cmd
	err      error // after Ended is closed
	stopping atomic.Bool
}

// Start runs a command with its output in the file log. It is in a process group of its
// own, so that Ctrl-C reaches the parent alone, which ends its children in order; and it
// is killed when the parent dies.
func Start(name, log string, command ...string) (*Process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	defer out.Close()
	p := &Process{Name: name, Log: log, Ended: make(chan struct{}), cmd: exec.Command(command[0], command[1:]...)}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.PID = p.cmd.Process.Pid
	go func() {
		p.err = p.cmd.Wait()
		close(p.Ended)
	}()
	return p, nil
}

// startTimeout bounds the wait for a sign of life.
const startTimeout = 30 * time.Second

// AwaitFile returns the content of a file that the process writes once it works. The
// file appears at once with all that is in it.
func (p *Process) AwaitFile(ctx context.Context, file string) (string, error) {
	deadline := time.After(startTimeout)
	for over := false; ; {
		if raw, err := os.ReadFile(file); err == nil {
			return string(raw), nil
		}
		if over {
			return "", p.Failure()
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-p.Ended:
			over = true // it may have written the file just before
		case <-deadline:
			return "", fmt.Errorf("%s did not start in %v:\n%s", p.Name, startTimeout, Tail(p.Log))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Failure says why the process ended by itself, or nil.
func (p *Process) Failure() error {
	select {
	case <-p.Ended:
	default:
		return nil
	}
	if p.stopping.Load() {
		return nil
	}
	if p.err == nil {
		return fmt.Errorf("%s ended:\n%s", p.Name, Tail(p.Log))
	}
	return fmt.Errorf("%s ended (%w):\n%s", p.Name, p.err, Tail(p.Log))
}

// Stop asks the process to end and, after ten seconds, makes it.
func (p *Process) Stop() {
	p.stopping.Store(true)
	_ = p.cmd.Process.Signal(os.Interrupt) // fails when it has ended: fine
	select {
	case <-p.Ended:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.Ended
	}
}

// StopAll stops processes at the same time.
func StopAll(ps []*Process) {
	var wg sync.WaitGroup
	for _, p := range ps {
		wg.Go(p.Stop)
	}
	wg.Wait()
}

// Tail returns the last lines of a file.
func Tail(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
