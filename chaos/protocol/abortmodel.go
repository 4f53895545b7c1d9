package protocol

import "fmt"

// AbortRules says which rules of an aborted move are kept. The zero value keeps all;
// each field is a mutant.
type AbortRules struct {
	AbortCloses bool // M4: an abort closes whatever copy is open, newer ones too
	NoReset     bool // step 3: the start of a resync does not reset the copy
	// Not needed for safety; kept as a defence, and clean without:
	AcksUnmarked bool // acks do not say which move they are for
	ClosedTakes  bool // L3: a copy that is not open takes frames
}

// Abort is one move begun, aborted or committed, and begun again, with lag at every
// actor: what is left of the first move must not harm the second.
type Abort struct {
	Rules   AbortRules
	Batches uint8 // at most 3
	Hold    bool  // as in Copy
	Quiet   bool  // nobody asks: fewer states, for what shows without
}

type abortState struct {
	stream       stream
	raw          uint8
	a            struct{ value, cursor uint8 }
	b            struct{ value, cursor, open uint8 } // open: the move that it is open for
	mode, move   uint8                               // what the ingest does, and for which move
	ready, gone  uint8
	fence        uint8
	toA, toB     link
	dump         dump
	acks         [3]uint8 // ends of resyncs that B acked, by move, in order; 0 = none
	log          uint8    // 1 begun, then 2 committed; or 2 aborted, 3 begun again, 4 committed
	aborted      bool
	applied      [4]uint8
	query        query
	stopped      uint8
	ackA, ackB   uint8
	acknowledged uint8
}

// commits reports whether the log up to an entry has the move committed.
func (s *abortState) commits(at uint8) bool { return at >= 2 && !s.aborted || at >= 4 }

// moves returns the move that is under way at an entry of the log, 0 for none.
func (s *abortState) moves(at uint8) uint8 {
	switch {
	case at == 0 || s.aborted && at == 2:
		return 0
	case at >= 3:
		return 2
	}
	return 1
}

// Start implements Model.
func (m Abort) Start() abortState { return abortState{} }

// Check implements Model.
func (m Abort) Check(s abortState) Fault {
	if f := s.query.judge(s.stream); f != None {
		return f
	}
	if s.mode == dual && s.ready == 1 && s.toA.n == 0 && s.toB.n == 0 && s.raw == 0 && s.stream.n > 0 && s.commits(s.applied[atB]) &&
		(s.b.open == 0 || s.b.value != s.stream.last()) {
		return Parity
	}
	return None
}

type abortStep = func(string, func(*abortState))

// Steps implements Model.
func (m Abort) Steps(s abortState, emit func(string, abortState)) {
	to := func(step string, change func(n *abortState)) {
		n := s
		change(&n)
		least := n.stream.n - n.raw
		if n.gone == 0 {
			least = min(least, n.ackA)
		}
		if n.gone == 1 || n.mode == dual && (n.ready == 1 || m.Hold) {
			least = min(least, n.ackB)
		}
		n.acknowledged = max(n.acknowledged, least)
		emit(step, n)
	}
	m.engine(s, to)
	m.logSteps(s, to)
	m.ingest(s, to)
	m.owners(s, to)
	if !m.Quiet {
		m.reads(s, to)
	}
}

func (m Abort) engine(s abortState, to abortStep) {
	if s.stream.n == m.Batches {
		return
	}
	for deed, what := range deeds[:others] {
		to("engine "+what, func(n *abortState) {
			i := n.stream.n
			n.stream = n.stream.publish(uint8(deed))
			if n.mode == fenced && !m.Hold {
				n.raw++
				return
			}
			if n.gone == 0 {
				n.toA = n.toA.send(opMessage(0, i))
			}
			if n.mode == dual || n.gone == 1 {
				n.toB = n.toB.send(opMessage(0, i))
			}
		})
	}
}

func (m Abort) logSteps(s abortState, to abortStep) {
	switch {
	case s.log == 0:
		to("log: begin 1 (M2)", func(n *abortState) { n.log = 1 })
	case s.log == 1:
		to("log: abort 1 (M4)", func(n *abortState) { n.log, n.aborted = 2, true })
		if s.mode == dual && s.ready == 1 && s.move == 1 {
			to("log: commit 1 (M3)", func(n *abortState) { n.log = 2 })
		}
	case s.aborted && s.log == 2:
		to("log: begin 2 (M2)", func(n *abortState) { n.log = 3 })
	case s.aborted && s.log == 3 && s.mode == dual && s.ready == 1 && s.move == 2:
		to("log: commit 2 (M3)", func(n *abortState) { n.log = 4 })
	}
	for who, at := range s.applied {
		if at == s.log {
			continue
		}
		to(actors[who]+fmt.Sprintf(" applies entry %d", at+1), func(n *abortState) {
			n.applied[who]++
			if !n.aborted || n.applied[who] != 2 {
				return
			}
			switch who {
			case atB:
				if m.Rules.AbortCloses || n.b.open == 1 {
					n.b.open = 0 // M4: a copy of the second move stays
				}
			case atIngest:
				n.toA = n.toA.ops(0, n.stream.n-n.raw, n.stream.n)
				n.mode, n.ready, n.raw, n.ackB = single, 0, 0, 0
			}
		})
	}
}

func (m Abort) ingest(s abortState, to abortStep) {
	move := s.moves(s.applied[atIngest])
	if s.mode == single && move > s.move && !s.commits(s.applied[atIngest]) {
		to(fmt.Sprintf("ingest sends the fence of move %d (step 1)", move), func(n *abortState) {
			n.mode, n.move, n.ready, n.ackB, n.fence = fenced, move, 0, 0, n.stream.n
			n.toA = n.toA.send(fenceMessage(0, move))
		})
	}
	if d := s.dump; d.some == 1 {
		if s.mode != fenced || d.token != s.move {
			to("ingest drops a dump that it does not wait for", func(n *abortState) { n.dump = dump{} })
		} else {
			to("ingest fills B and goes on with both (step 3)", func(n *abortState) {
				from := n.stream.n - n.raw
				n.toA = n.toA.ops(0, from, n.stream.n)
				if m.Hold {
					from = n.fence
				}
				n.toB = n.toB.send(resyncMessage(0, d.value, n.move, d.cursor)).ops(0, from, n.stream.n)
				n.dump, n.mode, n.raw = dump{}, dual, 0
			})
		}
	}
	if s.ackA < s.a.cursor {
		to("ingest hears A's ack (L2)", func(n *abortState) { n.ackA = n.a.cursor })
	}
	if s.mode == dual && s.ackB < s.b.cursor && (m.Rules.AcksUnmarked || s.b.open == s.move) {
		to("ingest hears B's ack (L2)", func(n *abortState) { n.ackB = n.b.cursor })
	}
	if s.acks[0] != 0 {
		pop := func(n *abortState) { n.acks = [3]uint8{n.acks[1], n.acks[2]} }
		switch {
		case s.mode != dual || s.acks[0] != s.move && !m.Rules.AcksUnmarked:
			to("ingest drops an ack of another move", pop)
		case !m.Hold && s.ackB >= s.ackA || m.Hold && s.ackB == s.stream.n:
			to("ingest reports B ready (step 4, M3)", func(n *abortState) {
				pop(n)
				n.ready = 1
			})
		}
	}
	if s.mode == dual && s.commits(s.applied[atIngest]) && s.gone == 0 && s.ready == 1 && s.stopped == 1 {
		to("ingest stops sending to A (M5)", func(n *abortState) { n.gone = 1 })
	}
	if s.commits(s.applied[atA]) && s.stopped == 0 {
		to("ingest hears that A serves no more (M5)", func(n *abortState) { n.stopped = 1 })
	}
}

func (m Abort) owners(s abortState, to abortStep) {
	if s.toA.n > 0 {
		x, rest := s.toA.receive()
		switch {
		case x.kind() == kindOp:
			to("A applies", func(n *abortState) {
				n.toA = rest
				n.a.value, n.a.cursor = n.stream.after(x.index(), n.a.value), x.index()+1
			})
		case s.dump.some == 0:
			to("A dumps at the fence (step 2)", func(n *abortState) {
				n.toA, n.dump = rest, dump{1, 0, x.token(), n.a.value, n.a.cursor}
			})
		}
	}
	if s.toB.n == 0 {
		return
	}
	x, rest := s.toB.receive()
	switch {
	case x.kind() == kindResync:
		to(fmt.Sprintf("B is filled and open for move %d, and acks (step 3)", x.token()), func(n *abortState) {
			n.toB = rest
			if m.Rules.NoReset && n.b.cursor > 0 {
				n.b.cursor = max(n.b.cursor, x.cursor())
			} else {
				n.b.value, n.b.cursor = x.value(), x.cursor()
			}
			n.b.open = x.token()
			for i := range n.acks {
				if n.acks[i] == 0 {
					n.acks[i] = x.token()
					break
				}
			}
		})
	case s.b.open == 0 && !m.Rules.ClosedTakes:
		to("B ignores a frame for a copy that is not open (L3)", func(n *abortState) { n.toB = rest })
	default:
		to("B applies", func(n *abortState) {
			n.toB = rest
			n.b.value, n.b.cursor = n.stream.after(x.index(), n.b.value), x.index()+1
		})
	}
}

func (m Abort) reads(s abortState, to abortStep) {
	switch s.query.phase {
	case 0:
		to("a query is asked", func(n *abortState) { n.query = query{asked, n.acknowledged, 0} })
	case asked:
		switch {
		case !s.commits(s.applied[atRouter]):
			if !s.commits(s.applied[atA]) {
				to("the query reads A", func(n *abortState) { n.query.phase, n.query.got = answered, n.a.value })
			}
		case s.commits(s.applied[atB]) && s.b.open != 0:
			to("the query reads B", func(n *abortState) { n.query.phase, n.query.got = answered, n.b.value })
		}
	case answered:
		to("the query is judged", func(n *abortState) { n.query = query{phase: judged} })
	}
}
