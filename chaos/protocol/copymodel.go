package protocol

import "fmt"

// Rules says which rules of resync, dual write and commit are kept. The zero value keeps
// all; each field is a mutant.
type Rules struct {
	NoCatchUp      bool // step 4: ready without having reached what is acknowledged
	StopAtCommit   bool // M5: the ingest stops sending to the source when it applies the commit
	ReadyUncounted bool // I5: acknowledged without the ready target
	NoFence        bool // step 1: the dump is asked for beside the stream
	NoBoot         bool // M3, Q4: the commit does not say which process of the target
	NoTenure       bool // L3: frames of an earlier ingest are taken
	ServeOn        bool // M5: the source answers after it applied the commit

	// With hold-back:
	HoldNothing    bool // what comes between fence and dump is not held for the target
	FillLast       bool // the held batches go out before the fill
	OverflowGoesOn bool // what does not fit is left out
	AnyDump        bool // a dump of an earlier fence is taken for that of the last
	CountedLate    bool // the target counts once it is ready, not from its fill on: clean by itself
	ReportUnacked  bool // the report does not wait until all that was sent is acked
}

// Copy is the life of one new copy: resync from the source A to the target B, dual
// write, report and commit, with one ingest, a log that each of the four applies in its own
// time, and one query. Every step of doc.go's table is a transition.
type Copy struct {
	Rules   Rules
	Batches uint8 // at most 3
	Others  bool  // batches about other blocks are published, too
	Restart bool  // B restarts once, empty
	Crash   bool  // the ingest dies once and another takes over
	// Hold: as the nodes do it. The stream is not paused; what comes after the fence is
	// held for the target, at most Room batches, beyond which the fill is begun again.
	// The target counts from its fill on, and the report waits for all that was sent.
	Hold bool
	Room uint8
}

// The log.
const (
	begun     = 1
	committed = 2
)

// Ingest: what it does about the copy.
const (
	single = 0 // sends to A alone
	fenced = 1 // waits for the dump
	dual   = 2
)

type copyState struct {
	stream       stream
	raw          uint8 // batches received and not passed on, while paused
	a            owner
	b            owner
	mode, tenure uint8
	ready, gone  uint8 // B is ready; A is not sent to any more
	token, fence uint8 // of the last fence; batches before it
	tries        uint8
	toA, toB     link
	dump         dump
	ack          struct{ some, tenure, boot uint8 }
	log          uint8
	applied      [4]uint8
	boot         uint8 // 1 + boot id in the report
	query        query
	restarts     uint8
	crashes      uint8
	stopped      uint8 // A has said that it applied the commit
	ackA, ackB   uint8 // cursors that the ingest has heard
	acknowledged uint8
}

type owner struct{ value, cursor, tenure, open, boot uint8 }

const (
	atA = iota
	atB
	atIngest
	atRouter
)

var actors = [...]string{"A", "B", "ingest", "router"}

// Start implements Model.
func (c Copy) Start() copyState {
	s := copyState{}
	if c.Restart {
		s.restarts = 1
	}
	if c.Crash {
		s.crashes = 1
	}
	return s
}

// Check implements Model.
func (c Copy) Check(s copyState) Fault {
	if f := s.query.judge(s.stream); f != None {
		return f
	}
	if s.mode == dual && s.ready == 1 && s.toA.n == 0 && s.toB.n == 0 && s.raw == 0 && s.b.open == 1 && s.stream.n > 0 &&
		s.b.value != s.stream.last() {
		return Parity
	}
	return None
}

// Steps implements Model.
func (c Copy) Steps(s copyState, emit func(string, copyState)) {
	to := func(step string, change func(n *copyState)) {
		n := s
		change(&n)
		c.acknowledge(&n)
		emit(step, n)
	}
	c.engine(s, to)
	c.logSteps(s, to)
	c.ingest(s, to)
	c.source(s, to)
	c.target(s, to)
	c.faults(s, to)
	c.reads(s, to)
}

type step = func(string, func(*copyState))

// acknowledge moves on what the ingest has given back to the engine (I5). What was
// acknowledged once stays so.
func (c Copy) acknowledge(s *copyState) {
	least := s.stream.n - s.raw
	if s.gone == 0 {
		least = min(least, s.ackA)
	}
	counts := s.mode == dual && s.ready == 1 && !c.Rules.ReadyUncounted
	if c.Hold && s.mode == dual && !c.Rules.CountedLate {
		counts = true
	}
	if counts || s.gone == 1 {
		least = min(least, s.ackB)
	}
	s.acknowledged = max(s.acknowledged, least)
}

// engine: it publishes a batch.
func (c Copy) engine(s copyState, to step) {
	if s.stream.n == c.Batches {
		return
	}
	for deed, what := range deeds {
		op := uint8(deed)
		if op == others && !c.Others {
			continue
		}
		if s.mode == fenced && !c.Hold {
			to("engine "+what+", batch waits (step 1)", func(n *copyState) {
				n.stream = n.stream.publish(op)
				n.raw++
			})
			continue
		}
		to("engine "+what, func(n *copyState) {
			m := opMessage(n.tenure, n.stream.n)
			n.stream = n.stream.publish(op)
			if n.gone == 0 {
				n.toA = n.toA.send(m)
			}
			if n.mode == dual || n.gone == 1 {
				n.toB = n.toB.send(m)
			}
			if n.mode == fenced && n.stream.n-n.fence > c.Room { // overflow: begin again later
				if n.mode = single; c.Rules.OverflowGoesOn {
					n.mode, n.fence = fenced, n.stream.n
				}
			}
		})
	}
}

func (c Copy) logSteps(s copyState, to step) {
	if s.log == 0 {
		to("log: begin (M2)", func(n *copyState) { n.log = begun })
	}
	if s.mode == dual && s.ready == 1 && s.log == begun && (c.Rules.NoBoot || s.boot == s.b.boot+1) {
		to("log: commit (M3)", func(n *copyState) { n.log = committed })
	}
	for who, at := range s.applied {
		if at < s.log {
			to(actors[who]+fmt.Sprintf(" applies entry %d", at+1), func(n *copyState) { n.applied[who]++ })
		}
	}
}

func (c Copy) ingest(s copyState, to step) {
	if s.applied[atIngest] >= begun && s.mode == single && s.log < committed {
		switch {
		case c.Rules.NoFence:
			if s.dump.some == 0 {
				to("ingest asks for a dump beside the stream", func(n *copyState) {
					n.mode, n.ready, n.gone = fenced, 0, 0
					n.fence = n.stream.n
					n.dump = dump{1, n.tenure, n.token, n.a.value, n.a.cursor}
				})
			}
		case !c.Hold || s.tries < 2:
			to("ingest sends the fence (step 1)", func(n *copyState) {
				n.mode, n.ready, n.gone = fenced, 0, 0
				if c.Hold {
					n.token++
					n.tries++
				}
				n.fence = n.stream.n
				n.toA = n.toA.send(fenceMessage(n.tenure, n.token))
			})
		}
	}
	if s.dump.some == 1 {
		c.dumpArrives(s, to)
	}
	if s.ack.some == 1 {
		c.ackArrives(s, to)
	}
	if s.mode == dual && s.applied[atIngest] == committed && s.gone == 0 && s.ready == 1 && (c.Rules.StopAtCommit || s.stopped == 1) {
		to("ingest stops sending to A (M5)", func(n *copyState) { n.gone = 1 })
	}
	if s.applied[atA] == committed && s.stopped == 0 {
		to("ingest hears that A serves no more (M5)", func(n *copyState) { n.stopped = 1 })
	}
	if s.ackA < s.a.cursor {
		to("ingest hears A's ack (L2)", func(n *copyState) { n.ackA = n.a.cursor })
	}
	if s.mode == dual && s.ackB < s.b.cursor && s.b.open == 1 {
		to("ingest hears B's ack (L2)", func(n *copyState) { n.ackB = n.b.cursor })
	}
}

func (c Copy) dumpArrives(s copyState, to step) {
	d := s.dump
	if s.mode != fenced || d.tenure != s.tenure || d.token != s.token && !c.Rules.AnyDump {
		to("ingest drops a dump that it does not wait for", func(n *copyState) { n.dump = dump{} })
		return
	}
	to("ingest fills B and goes on with both (step 3)", func(n *copyState) {
		n.dump, n.mode = dump{}, dual
		fill := resyncMessage(n.tenure, d.value, 0, d.cursor)
		if !c.Hold {
			n.toA = n.toA.ops(n.tenure, n.stream.n-n.raw, n.stream.n)
			n.toB = n.toB.send(fill).ops(n.tenure, n.stream.n-n.raw, n.stream.n)
			n.raw = 0
			return
		}
		from := n.fence
		if c.Rules.HoldNothing {
			from = n.stream.n
		}
		if c.Rules.FillLast {
			n.toB = n.toB.ops(n.tenure, from, n.stream.n).send(fill)
		} else {
			n.toB = n.toB.send(fill).ops(n.tenure, from, n.stream.n)
		}
	})
}

// ackArrives: the end of the resync is acked. Ready is more (step 4).
func (c Copy) ackArrives(s copyState, to step) {
	if s.ack.tenure != s.tenure || s.mode != dual {
		to("ingest drops an ack of another tenure", func(n *copyState) { n.ack.some, n.ack.tenure, n.ack.boot = 0, 0, 0 })
		return
	}
	reached := s.ackB >= s.ackA || c.Rules.NoCatchUp
	if c.Hold {
		reached = s.ackB == s.stream.n || c.Rules.ReportUnacked
	}
	if reached {
		to("ingest reports B ready (step 4, M3)", func(n *copyState) {
			n.ready, n.boot = 1, n.ack.boot+1
			n.ack.some, n.ack.tenure, n.ack.boot = 0, 0, 0
		})
	}
}

func (c Copy) source(s copyState, to step) {
	if s.toA.n == 0 {
		return
	}
	m, rest := s.toA.receive()
	switch {
	case m.kind() == kindFence:
		to("A dumps at the fence (step 2)", func(n *copyState) {
			n.toA, n.dump = rest, dump{1, m.tenure(), m.token(), n.a.value, n.a.cursor}
		})
	case m.tenure() < s.a.tenure && !c.Rules.NoTenure:
		to("A refuses an earlier tenure (L3)", func(n *copyState) { n.toA = rest })
	default:
		to("A applies", func(n *copyState) {
			n.toA = rest
			n.a.value, n.a.cursor, n.a.tenure = n.stream.after(m.index(), n.a.value), max(n.a.cursor, m.index()+1), max(n.a.tenure, m.tenure())
		})
	}
}

func (c Copy) target(s copyState, to step) {
	if s.toB.n == 0 {
		return
	}
	m, rest := s.toB.receive()
	switch {
	case m.tenure() < s.b.tenure && !c.Rules.NoTenure:
		to("B refuses an earlier tenure (L3)", func(n *copyState) { n.toB = rest })
	case m.kind() == kindResync:
		to("B is filled and open, and acks (step 3)", func(n *copyState) {
			n.toB, n.b = rest, owner{m.value(), m.cursor(), m.tenure(), 1, n.b.boot}
			n.ack.some, n.ack.tenure, n.ack.boot = 1, m.tenure(), n.b.boot
		})
	case s.b.open == 0:
		to("B ignores a frame for a copy that is not open (L3)", func(n *copyState) { n.toB = rest })
	default:
		to("B applies", func(n *copyState) {
			n.toB = rest
			n.b.value, n.b.cursor, n.b.tenure = n.stream.after(m.index(), n.b.value), max(n.b.cursor, m.index()+1), max(n.b.tenure, m.tenure())
		})
	}
}

func (c Copy) faults(s copyState, to step) {
	if s.restarts > 0 && s.log < committed {
		to("B restarts, empty (L2: a new boot id)", func(n *copyState) {
			n.restarts = 0
			n.b = owner{tenure: n.b.tenure, boot: n.b.boot + 1}
			n.toB, n.ackB = link{}, 0
			n.ack.some, n.ack.tenure, n.ack.boot = 0, 0, 0
			if !c.Rules.NoBoot && n.mode == dual {
				n.mode, n.ready, n.gone = single, 0, 0
			}
		})
	}
	if s.crashes > 0 && s.log < committed && (s.mode != single || s.stream.n > 0) {
		to("the ingest dies, another takes over from A (T1, T2)", func(n *copyState) {
			n.crashes = 0
			n.tenure++
			n.a.tenure = n.tenure
			n.mode, n.ready, n.gone, n.raw = single, 0, 0, 0
			n.toA = n.toA.ops(n.tenure, n.a.cursor, n.stream.n)
			n.dump, n.ackB, n.ackA = dump{}, 0, min(n.ackA, n.a.cursor)
			n.ack.some, n.ack.tenure, n.ack.boot = 0, 0, 0
		})
	}
}

func (c Copy) reads(s copyState, to step) {
	switch s.query.phase {
	case 0:
		to("a query is asked", func(n *copyState) { n.query = query{asked, n.acknowledged, 0} })
	case asked:
		switch {
		case s.applied[atRouter] < committed:
			if s.applied[atA] < committed || c.Rules.ServeOn { // else refused, and asked again (M5, Q2)
				to("the query reads A", func(n *copyState) { n.query.phase, n.query.got = answered, n.a.value })
			}
		case s.applied[atB] == committed && (s.b.open == 1 || c.Rules.NoBoot): // Q2, Q4
			to("the query reads B", func(n *copyState) { n.query.phase, n.query.got = answered, n.b.value })
		}
	case answered:
		to("the query is judged", func(n *copyState) { n.query = query{phase: judged} })
	}
}
