package raftlog

import (
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/state"
)

// fsm applies log entries to the state and hands out views. Raft calls it from one
// goroutine.
type fsm struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		state *state.State
		fns   []func(*state.View)
	}
}

func newFSM(log *slog.Logger) *fsm {
	f := &fsm{log: log}
	f.mu.state = state.New()
	return f
}

// Apply implements raft.FSM; it returns a state.Result.
func (f *fsm) Apply(l *raft.Log) any {
	c, err := state.DecodeCommand(l.Data)
	if err != nil {
		// Every node sees the same bytes, so all of them leave the entry out.
		f.log.Error("log entry left out", "index", l.Index, "error", err)
		c = state.Command{} // changes nothing but the index
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.mu.state.Apply(l.Index, c)
	if err != nil {
		r.Text = err.Error()
	}
	f.publishLocked()
	return r
}

func (f *fsm) publishLocked() {
	if len(f.mu.fns) == 0 {
		return
	}
	v := f.mu.state.View()
	for _, fn := range f.mu.fns {
		fn(v)
	}
}

func (f *fsm) view() *state.View {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.state.View()
}

func (f *fsm) subscribe(fn func(*state.View)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.fns = append(f.mu.fns, fn)
	fn(f.mu.state.View())
}

// Snapshot implements raft.FSM. The state is small (a few megabytes at 2,000 workers),
// so it is encoded at once instead of being shared with later entries.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, err := f.mu.state.Snapshot()
	if err != nil {
		return nil, err
	}
	return snapshot(b), nil
}

// Restore implements raft.FSM.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("read log snapshot: %w", err)
	}
	s, err := state.Restore(b)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.state = s
	f.publishLocked()
	return nil
}

type snapshot []byte

// Persist implements raft.FSMSnapshot.
func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(s); err != nil {
		return fmt.Errorf("write log snapshot: %w", cancelled(sink, err))
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (s snapshot) Release() {}

func cancelled(sink raft.SnapshotSink, err error) error {
	if cerr := sink.Cancel(); cerr != nil {
		return fmt.Errorf("%w (and cancelling it: %w)", err, cerr)
	}
	return err
}
