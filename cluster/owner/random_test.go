package owner

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

var schedules = flag.Int("owner.schedules", 12, "random schedules of two senders, with faults of the network")

// schedule is two senders, each with some slots, and everything that can happen to
// them. Before a copy is looked at, a mark is taken; if the copy is readable afterwards,
// what was seen must be one of the states that it had since the last acknowledged one.
type schedule struct {
	*world
	rng     *rand.Rand
	names   []string
	streams []*scheduled
	life    uint64
	nTenure uint64
	token   uint64
	fetches []*fenced
}

// scheduled is a slot and what is known of its one copy.
type scheduled struct {
	*stream
	by     string
	open   bool // as the sender has it
	states []known
}

// known is what the copy has when the payload n of the sender is applied.
type known struct {
	n    uint64
	text string
}

type fenced struct {
	want string
	got  chan error
}

func TestRandomSchedules(t *testing.T) {
	for seed := range uint64(*schedules) {
		if err := inWorld(t, mutant{}, func(w *world) error { return runSchedule(w, seed) }); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// TestRandomMutants: the schedules by themselves miss what is switched off.
func TestRandomMutants(t *testing.T) {
	for name, m := range map[string]mutant{
		"ack before apply":              {earlyAck: true},
		"resume before apply":           {earlyResume: true},
		"open before apply":             {earlyOpen: true},
		"closed frame applied":          {closedFrame: true},
		"dump not at the fence":         {lateDump: true},
		"session change closes nothing": {keepCopies: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(60) {
				if err := inWorld(t, m, func(w *world) error { return runSchedule(w, seed) }); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("60 schedules do not notice")
		})
	}
}

func runSchedule(w *world, seed uint64) error {
	s := &schedule{world: w, rng: rand.New(rand.NewPCG(seed, 3)), names: []string{"a", "c"}, nTenure: 1}
	for _, n := range s.names {
		w.start(n)
	}
	for slot := range indexer.Slot(6) {
		s.life++
		s.streams = append(s.streams, &scheduled{stream: newStream(slot, s.life, 1), by: s.names[slot%2]})
	}
	for step := range 250 {
		if err := s.step(); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		time.Sleep(time.Duration(s.rng.IntN(20)) * time.Millisecond)
		if err := s.look(); err != nil {
			return fmt.Errorf("after step %d: %w", step, err)
		}
	}
	return s.end()
}

// step lets one thing happen.
func (s *schedule) step() error {
	x := s.streams[s.rng.IntN(len(s.streams))]
	name := s.names[s.rng.IntN(2)]
	switch v := s.rng.IntN(100); {
	case v < 60:
		s.write(x)
	case v < 66:
		s.fill(x)
	case v < 72:
		s.fence(x)
	case v < 76:
		s.index.shut()
	case v < 82:
		s.index.open()
	case v < 85: // off the network for a while
		s.net.CutMesh(name, "o")
		s.net.CutMesh("o", name)
	case v < 90:
		s.net.HealMesh(name, "o")
		s.net.HealMesh("o", name)
	case v < 92:
		time.Sleep(time.Duration(s.rng.IntN(2000)) * time.Millisecond)
	case v < 94:
		s.restart(name)
	case v < 97:
		return s.takeover(x)
	case v < 98:
		s.send(x, copywire.AppendFrame(nil, x.bad(0)), "")
		x.open = false
	}
	return nil
}

// send hands a payload to x's sender; afterwards the copy has text.
func (s *schedule) send(x *scheduled, payload []byte, text string) {
	p := s.peers[x.by]
	if !p.up() {
		x.open = false
		return
	}
	p.send(payload)
	x.states = append(x.states, known{p.last, text})
}

func (s *schedule) write(x *scheduled) {
	if !x.open {
		s.fill(x)
	}
	var f indexer.Frame
	if n := len(x.copy(0).live); s.rng.IntN(10) < min(n, 6) {
		f = x.drop(0, 1+s.rng.IntN(n))
	} else {
		f = x.frame(0, 1+s.rng.IntN(3))
	}
	s.send(x, copywire.AppendFrame(nil, f), x.want(0))
}

func (s *schedule) fill(x *scheduled) {
	x.open = true
	for _, p := range x.stream.fill(0) {
		s.send(x, p, x.want(0))
	}
}

// fence fetches a dump, while the schedule goes on.
func (s *schedule) fence(x *scheduled) {
	p := s.peers[x.by]
	if !x.open || !p.up() {
		return
	}
	s.token++
	f := &fenced{want: x.want(0), got: make(chan error, 1)}
	s.fetches = append(s.fetches, f)
	token := s.token
	s.send(x, copywire.AppendFence(nil, token, x.SlotLife, list(0)), x.want(0))
	go func() {
		d, err := fetch(p, token)
		if err != nil || !d[0].Open {
			f.got <- nil // lost with its session, or too late; the fence is sent again by those who need it
			return
		}
		if have := text(d[0].Stretches); have != f.want {
			f.got <- fmt.Errorf("dump of %v has %s, want %s", x.SlotLife, have, f.want)
			return
		}
		f.got <- nil
	}()
}

func (s *schedule) restart(name string) {
	s.net.HealMesh(name, "o")
	s.net.HealMesh("o", name)
	s.start(name)
	for _, x := range s.streams {
		if x.by == name {
			// Nothing of the old session is acknowledged any more.
			x.open, x.states = false, nil
		}
	}
}

// takeover gives a slot to the other sender.
func (s *schedule) takeover(x *scheduled) error {
	s.index.open()
	s.nTenure++
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := s.owner.Adopt(ctx, x.SlotLife, s.nTenure)
	if err != nil {
		return err
	}
	// What is open here has all that was acknowledged, and is labelled so.
	for _, c := range l.Copies {
		if c.Sequence > x.seq {
			return fmt.Errorf("label %+v of %v, which has come to %d", c, x.SlotLife, x.seq)
		}
	}
	x.tenure = s.nTenure
	if s.rng.IntN(2) == 0 {
		x.by = s.names[0]
	} else {
		x.by = s.names[1]
	}
	x.open, x.states = false, nil
	return nil
}

// look compares what a query sees with what it may see.
func (s *schedule) look() error {
	for _, x := range s.streams {
		p := s.peers[x.by]
		least := uint64(0)
		if p.lapsed() {
			least = ^uint64(0) // everything sent counts as acknowledged
		}
		least = max(least, p.acked())
		mark := s.owner.Mark()
		have := s.have(x.stream, 0)
		if s.rng.IntN(2) == 0 {
			time.Sleep(time.Duration(s.rng.IntN(5)) * time.Millisecond)
		}
		if !s.readable(x.stream, 0, mark) {
			continue
		}
		if x.states == nil {
			return fmt.Errorf("%v is readable, of a sender that has said nothing", x.SlotLife)
		}
		ok := false
		for i, k := range x.states {
			behind := i+1 < len(x.states) && x.states[i+1].n <= least
			ok = ok || !behind && k.text == have
		}
		if !ok {
			return fmt.Errorf("%v has %q, acknowledged up to payload %d (lapsed %t), states %+v", x.SlotLife, have, least, p.lapsed(), x.states)
		}
	}
	return nil
}

// end heals everything; then all is readable and complete.
func (s *schedule) end() error {
	s.index.open()
	for _, n := range s.names {
		s.net.HealMesh(n, "o")
		s.net.HealMesh("o", n)
	}
	time.Sleep(5 * time.Second)
	for _, n := range s.names {
		if p := s.peers[n]; !s.await(p.up) {
			return fmt.Errorf("%s does not come back", n)
		}
	}
	for _, x := range s.streams {
		s.fill(x)
		s.write(x)
	}
	var errs []error
	for _, n := range s.names {
		errs = append(errs, s.peers[n].settled())
	}
	for _, x := range s.streams {
		errs = append(errs, s.is("at the end", x.stream, 0))
	}
	for _, f := range s.fetches {
		errs = append(errs, <-f.got)
	}
	if st := s.owner.Stats(); st.Open != len(s.streams) || st.Ignored["malformed"] != 0 || st.Sessions != 2 {
		errs = append(errs, fmt.Errorf("stats %+v", st))
	}
	return errors.Join(errs...)
}
