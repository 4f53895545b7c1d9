package control

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
)

const (
	// askAfter is how long a node waits to be taken in, or to hear of a leader, before it
	// asks why it is not, and then between questions.
	askAfter = 2 * time.Second
	// askTimeout bounds one such question.
	askTimeout = 500 * time.Millisecond
)

// follow is what everybody but the leader does: a node that is no member, or that hears
// of no leader, asks the others why. A server that was taken out of the log while it was
// cut off hears nothing else of it.
func (c *Control) follow(ctx context.Context, peers map[string]gossip.Peer) {
	_, led := c.deps.Log.Leader()
	if c.isMember() {
		c.noteAnswer("")
	}
	if c.isMember() && led {
		c.asked = time.Now()
		return
	}
	if time.Since(c.asked) < askAfter {
		return
	}
	c.asked = time.Now()
	for _, id := range slices.Sorted(maps.Keys(peers)) {
		if !peers[id].Alive {
			continue
		}
		actx, cancel := context.WithTimeout(ctx, askTimeout)
		text, err := c.ask(actx, peers[id].Name, methodWhy)
		cancel()
		switch {
		case errors.Is(err, ErrRemoved):
			c.noteRemoved()
			return
		case err == nil:
			c.noteAnswer(string(text))
			return
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// isMember reports whether the log calls this very process a member.
func (c *Control) isMember() bool {
	m, ok := c.View().Member(c.cfg.Self.Name)
	return ok && m.ServerID == c.cfg.Self.ServerID && m.Boot == c.cfg.Self.Boot
}

func (c *Control) noteAnswer(text string) {
	c.mu.Lock()
	same := c.mu.answer == text
	c.mu.answer = text
	c.mu.Unlock()
	if same {
		return
	}
	if text != "" {
		c.log.Warn("the cluster does not take this node in", "reason", text)
	}
	c.notify()
}

// WaitMember returns when the log calls this process a member, with ErrRefused and the
// reason when the cluster does not take it in, or with ctx's error.
func (c *Control) WaitMember(ctx context.Context) error {
	for {
		changed := c.changed()
		if c.isMember() {
			return nil
		}
		c.mu.Lock()
		why := c.mu.answer
		c.mu.Unlock()
		if why != "" {
			return fmt.Errorf("%w: %s", ErrRefused, why)
		}
		select {
		case <-changed:
		case <-c.removed:
			return ErrRemoved
		case <-ctx.Done():
			return fmt.Errorf("wait to become a member: %w", ctx.Err())
		}
	}
}

const (
	// attempt bounds one try of a command: a leader that hangs must not eat the time of
	// the caller.
	attempt = 3 * time.Second
	// firstPause doubles up to lastPause between tries.
	firstPause, lastPause = 20 * time.Millisecond, 500 * time.Millisecond
)

// Propose implements cluster.Log: it gives the command an id if it has none, sends it
// to whoever leads, and repeats it until its outcome is known here or ctx is done.
func (c *Control) Propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	if cmd.ID == ([16]byte{}) {
		cmd.ID = newID()
	}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		actx, cancel := context.WithTimeout(ctx, attempt)
		r, err := c.deps.Log.Propose(actx, cmd)
		cancel()
		if err == nil {
			return r, nil
		}
		again := errors.Is(err, raftlog.ErrNoLeader) || errors.Is(err, raftlog.ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded)
		if !again || ctx.Err() != nil {
			return state.Result{}, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return state.Result{}, fmt.Errorf("%w (%w)", err, ctx.Err())
		case <-c.removed:
			return state.Result{}, ErrRemoved
		}
	}
}

func newID() (id [16]byte) {
	_, _ = rand.Read(id[:]) // crypto/rand.Read never fails (it aborts the process)
	return id
}
