package control

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/transport/link"
)

// A command whose fate is not known is never called refused, and one that nobody took is
// tried again.
func TestForwardErrors(t *testing.T) {
	final := &link.CallError{Message: "decode command"}
	for _, c := range []struct{ err, want error }{
		{raftlog.ErrNoLeader, raftlog.ErrNoLeader},
		{raftlog.ErrUnknownOutcome, raftlog.ErrUnknownOutcome},
		{link.ErrPeer, raftlog.ErrNoLeader},
		{link.ErrBusy, raftlog.ErrNoLeader},
		{link.ErrMethod, raftlog.ErrNoLeader},
		{link.ErrClosed, raftlog.ErrNoLeader},
		{link.ErrDown, raftlog.ErrUnknownOutcome},
		{context.DeadlineExceeded, raftlog.ErrUnknownOutcome},
		{link.ErrTooLarge, link.ErrTooLarge},
		{final, final},
	} {
		got := forwardError(fmt.Errorf("call: %w", c.err))
		if !errors.Is(got, c.want) || !errors.Is(got, c.err) {
			t.Errorf("%v became %v, want %v", c.err, got, c.want)
		}
		if c.want != raftlog.ErrUnknownOutcome && errors.Is(got, raftlog.ErrUnknownOutcome) {
			t.Errorf("%v became an unknown outcome", c.err)
		}
	}
}

// The same plan has the same ids, another index or command has others.
func TestPlannedCommandsAreIdempotent(t *testing.T) {
	id := func(index uint64, node string) [16]byte {
		c := state.Command{Assign: &state.Assign{Source: 7, Node: node}}
		if err := identify(index, &c); err != nil {
			t.Fatal(err)
		}
		return c.ID
	}
	if again := id(5, "a"); again != id(5, "a") || id(5, "a") == id(6, "a") || id(5, "a") == id(5, "b") || id(5, "a") == ([16]byte{}) {
		t.Error("ids do not follow index and command")
	}
}

func TestConfig(t *testing.T) {
	good := Config{Self: state.Member{Name: "n", ServerID: "s", Boot: 1, Raft: "a:1"}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Self.Name = "" }, func(c *Config) { c.Self.Boot = 0 }, func(c *Config) { c.Self.Raft = "" },
		func(c *Config) { c.Self.ServerID = "" }, func(c *Config) { c.Grace = -1 }, func(c *Config) { c.MaxMoves = -1 },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad, Deps{}); err == nil {
			t.Errorf("accepted %+v", bad)
		}
	}
	if _, err := New(good, Deps{}); err == nil {
		t.Error("accepted without a log")
	}
}
