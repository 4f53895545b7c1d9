package transporttest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/transport"
)

// patience is how long the suite waits for what must come. It is long because
// machines that run tests are busy; only a failure takes it.
const patience = 20 * time.Second

// Recorder is a handler that keeps what it gets, for a test that waits for it. It
// serves subscriptions and replay sockets alike.
type Recorder struct {
	// Do, if set, runs on the loop at each message before it is kept; a false answer
	// leaves the message out.
	Do func(frames [][]byte) bool

	mu struct {
		sync.Mutex
		changed     chan struct{} // closed and replaced at each change
		messages    [][][]byte
		connects    int
		disconnects int
		log         []string // order of everything: "+", "-", and what messages are
	}
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder {
	r := &Recorder{}
	r.mu.changed = make(chan struct{})
	return r
}

func (r *Recorder) change(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn()
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
}

// OnMessage implements transport.SubscribeHandler.
func (r *Recorder) OnMessage(frames [][]byte) {
	if r.Do != nil && !r.Do(frames) {
		return
	}
	kept := make([][]byte, len(frames))
	for i, f := range frames {
		kept[i] = bytes.Clone(f)
	}
	r.change(func() {
		r.mu.messages = append(r.mu.messages, kept)
		r.mu.log = append(r.mu.log, describe(kept))
	})
}

// OnReply implements transport.ReplayHandler.
func (r *Recorder) OnReply(frames [][]byte) { r.OnMessage(frames) }

// OnConnect implements both handlers.
func (r *Recorder) OnConnect() {
	r.change(func() {
		r.mu.connects++
		r.mu.log = append(r.mu.log, "+")
	})
}

// OnDisconnect implements both handlers.
func (r *Recorder) OnDisconnect() {
	r.change(func() {
		r.mu.disconnects++
		r.mu.log = append(r.mu.log, "-")
	})
}

// describe gives a batch as topic:sequence:size and anything else as it is.
func describe(frames [][]byte) string {
	if len(frames) == 3 && len(frames[1]) == 8 {
		return fmt.Sprintf("%s:%d:%d", frames[0], binary.BigEndian.Uint64(frames[1]), len(frames[2]))
	}
	if len(frames) == 2 && len(frames[0]) == 8 {
		return fmt.Sprintf("%d:%d", binary.BigEndian.Uint64(frames[0]), len(frames[1]))
	}
	return fmt.Sprintf("%q", frames)
}

// Seen is what a recorder has got so far.
type Seen struct {
	Messages              [][][]byte
	Connects, Disconnects int
	Log                   []string
}

// Seen returns a snapshot.
func (r *Recorder) Seen() Seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seenLocked()
}

func (r *Recorder) seenLocked() Seen {
	// Both only grow at their end or are replaced, so a snapshot need not copy them.
	return Seen{slices.Clip(r.mu.messages), r.mu.connects, r.mu.disconnects, slices.Clip(r.mu.log)}
}

// Forget drops the messages and the log, not the counts of connections.
func (r *Recorder) Forget() {
	r.change(func() { r.mu.messages, r.mu.log = nil, nil })
}

// Await waits until ok and fails the test when that takes too long.
func (r *Recorder) Await(t testing.TB, what string, ok func(Seen) bool) Seen {
	t.Helper()
	return r.awaitDoing(t, what, nil, ok)
}

// awaitDoing waits as Await does, and calls again every few milliseconds.
func (r *Recorder) awaitDoing(t testing.TB, what string, again func(), ok func(Seen) bool) Seen {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		r.mu.Lock()
		seen, changed := r.seenLocked(), r.mu.changed
		r.mu.Unlock()
		if ok(seen) {
			return seen
		}
		select {
		case <-changed:
		case <-tick.C:
			if again != nil {
				again()
			}
		case <-deadline.C:
			log := seen.Log
			if len(log) > 20 {
				log = log[len(log)-20:]
			}
			t.Fatalf("waited %v for %s; saw %d messages, %d connects, %d disconnects, last %q",
				patience, what, len(seen.Messages), seen.Connects, seen.Disconnects, log)
		}
	}
}

// probe is a batch that a test sends until it arrives: only then a subscription
// is known to stand, because a connection comes before its subscription.
const probe = "probe"

// AwaitStream publishes probes until r gets one through p, then forgets them. The
// probes carry topic and are not recorded for replay.
func (r *Recorder) AwaitStream(t testing.TB, p transport.Publisher, topic string) {
	t.Helper()
	mark := fmt.Appendf(nil, "%s %p %d", probe, p, time.Now().UnixNano())
	var zero [8]byte
	r.awaitDoing(t, "the first message of "+p.Endpoint(), func() {
		if err := p.SendRaw([]byte(topic), zero[:], mark); err != nil {
			t.Errorf("send a probe: %v", err)
		}
	}, func(s Seen) bool {
		return slices.ContainsFunc(s.Messages, func(m [][]byte) bool { return len(m) == 3 && bytes.Equal(m[2], mark) })
	})
	r.dropProbes()
}

// dropProbes forgets the probes so far.
func (r *Recorder) dropProbes() {
	r.change(func() {
		r.mu.messages = slices.DeleteFunc(slices.Clone(r.mu.messages), isProbe)
	})
}

func isProbe(m [][]byte) bool {
	return len(m) == 3 && bytes.HasPrefix(m[2], []byte(probe))
}

// Batches returns the messages that are no probes.
func (s Seen) Batches() [][][]byte {
	return slices.DeleteFunc(slices.Clone(s.Messages), isProbe)
}

// Sequences returns the sequences of the batches, taken as three frames.
func (s Seen) Sequences() []uint64 {
	var out []uint64
	for _, m := range s.Batches() {
		if len(m) == 3 && len(m[1]) == 8 {
			out = append(out, binary.BigEndian.Uint64(m[1]))
		}
	}
	return out
}
