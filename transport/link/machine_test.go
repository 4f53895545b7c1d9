package link

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// The two machines of a link against a network that does anything, without
// goroutines: a schedule is a list of decisions, so it can be random or exhaustive,
// and a failing one can be run again.

var (
	seedFlag      = flag.Uint64("link.seed", 0, "run only the schedule of this seed")
	schedulesFlag = flag.Int("link.schedules", 0, "how many random schedules; 0 = the default")
	depthFlag     = flag.Int("link.depth", 4, "decisions of an exhaustive schedule")
)

func machineConfig() Config {
	return Config{
		Name: "n", Cluster: "c", Boot: 1, Window: 120, Retention: 1200, RetentionAge: 20 * time.Second,
		Heartbeat: 100 * time.Millisecond, Timeout: time.Second, Margin: 50 * time.Millisecond, MaxPayload: 1000,
	}.withDefaults()
}

// decider answers each question with one of n.
type decider interface{ choose(n int) int }

type randomDecider struct{ *rand.Rand }

func (r randomDecider) choose(n int) int { return r.IntN(n) }

// world is a sender a, a receiver b, what is between them, and what is known to be
// true.
type world struct {
	decider
	cfgA, cfgB Config
	now        clock // of the world; b's clock is apart by skew
	skew       clock
	a          *outgoing
	b          *incoming
	attempts   *atomic.Uint64
	granted    *uint64
	toB, toA   [][]byte
	boots      uint64
	trace      []string
	failed     error

	up        Session              // what a believes
	sent      map[Session][]string // payloads that a accepted
	without   map[Session]int      // a acknowledged operations up to this frame without b
	ended     map[Session]bool     // a counts no longer on b in that session at all
	applied   map[Session]uint64   // acknowledged by b's user
	current   Session              // of b
	delivered int                  // in current
	newest    map[uint64]uint64    // number of the newest session by b's boot
	total     struct{ delivered, sessions, lost, resumed, lapsed, resent int }
}

func newWorld(d decider, cfg Config) *world {
	w := &world{
		decider: d, cfgA: cfg, cfgB: cfg, now: time.Second, skew: 1000 * time.Second,
		sent: map[Session][]string{}, without: map[Session]int{}, ended: map[Session]bool{},
		applied: map[Session]uint64{}, newest: map[uint64]uint64{},
	}
	w.cfgA.Name, w.cfgB.Name = "a", "b"
	w.rebootA()
	w.rebootB()
	return w
}

func (w *world) fail(format string, args ...any) {
	if w.failed == nil {
		w.failed = fmt.Errorf(format, args...)
	}
}

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%v "+format, append([]any{w.now}, args...)...))
}

func (w *world) rebootA() {
	w.boots++
	w.cfgA.Boot = w.boots
	w.up = Session{}
	w.attempts = &atomic.Uint64{}
	w.a = newOutgoing(&w.cfgA, "b", w.attempts)
	w.a.begin(w.now)
	w.note("a boots as %d", w.boots)
}

func (w *world) rebootB() {
	w.boots++
	w.cfgB.Boot = w.boots
	w.current, w.delivered = Session{}, 0
	w.granted = new(uint64)
	w.b = newIncoming(&w.cfgB, "a", w.granted, w)
	w.note("b boots as %d", w.boots)
}

func (w *world) nowB() clock { return w.now + w.skew }

func (w *world) txToB(parts ...[]byte) bool {
	w.toB = append(w.toB, slices.Concat(parts...))
	return true
}

func (w *world) txToA(parts ...[]byte) bool {
	w.toA = append(w.toA, slices.Concat(parts...))
	return true
}

// key is a session as b sees it.
func key(s Session) Session { s.Peer = ""; return s }

func (w *world) onSession(s Session) {
	w.note("b: session %v", s)
	w.total.sessions++
	if s.ReceiverBoot != w.cfgB.Boot || s.Number <= w.newest[w.cfgB.Boot] {
		w.fail("b takes up session %v in boot %d after number %d", s, w.cfgB.Boot, w.newest[w.cfgB.Boot])
	}
	w.newest[w.cfgB.Boot] = s.Number
	w.current, w.delivered = key(s), 0
}

func (w *world) onFrame(s Session, n uint64, payload []byte) {
	w.note("b: frame %d %q", n, payload)
	w.total.delivered++
	switch {
	case key(s) != w.current:
		w.fail("frame %d of %v, current is %v", n, s, w.current)
	case n != uint64(w.delivered+1):
		w.fail("frame %d of %v comes after %d", n, s, w.delivered)
	case len(w.sent[key(s)]) < int(n) || w.sent[key(s)][n-1] != string(payload):
		w.fail("frame %d of %v is %q, sent were %q", n, s, payload, w.sent[key(s)])
	}
	w.delivered++
}

func (w *world) onSilence(s Session) { w.note("b: silence") }
func (w *world) onResume(s Session)  { w.note("b: resume"); w.total.resumed++ }

// tellA looks at what a has to tell.
func (w *world) tellA() {
	for _, e := range w.a.events {
		w.note("a: %d %v %d", e.kind, e.session, e.n)
		s := key(e.session)
		switch e.kind {
		case outPeerUp:
			w.up = e.session
		case outPeerDown:
			w.up = Session{}
			w.total.lost++
		case outAck:
			if e.n > w.applied[s] {
				w.fail("a hears that %d of %v is applied, b applied %d", e.n, s, w.applied[s])
			}
		case outLapse:
			w.total.lapsed++
			if s == key(w.up) {
				w.without[s] = len(w.sent[s])
			} else {
				w.ended[s] = true
			}
		}
	}
	w.a.events = w.a.events[:0]
}

// check looks at what must hold at every moment.
func (w *world) check() {
	s := w.current
	if w.nowB() <= w.b.currentUntil() {
		if w.delivered < w.without[s] {
			w.fail("b is current in %v with %d frames, a acknowledged %d without it", s, w.delivered, w.without[s])
		}
		if w.ended[s] {
			w.fail("b is current in %v, and a has done with it", s)
		}
	}
	if w.a.frames.bytes > w.cfgA.Retention {
		w.fail("a retains %d bytes", w.a.frames.bytes)
	}
	if w.b.earlyBytes > w.cfgB.Window {
		w.fail("b keeps %d bytes", w.b.earlyBytes)
	}
	if w.a.inFlight > w.cfgB.Window {
		w.fail("%d bytes are in flight", w.a.inFlight)
	}
}

func (w *world) send() {
	if w.up == (Session{}) {
		return
	}
	s := key(w.up)
	payload := fmt.Sprintf("%d/%d/%d: %d", s.SenderBoot, s.ReceiverBoot, s.Number, len(w.sent[s])+1)
	w.note("a sends %q", payload)
	n, err := w.a.send(w.now, w.up, []byte(payload))
	if err != nil {
		if !errors.Is(err, ErrFull) {
			w.fail("send: %v", err)
		}
		w.tellA()
		return
	}
	w.sent[s] = append(w.sent[s], payload)
	if int(n) != len(w.sent[s]) {
		w.fail("frame %d of %v has number %d", len(w.sent[s]), s, n)
	}
	if w.a.lapsed {
		w.without[s] = len(w.sent[s])
	}
	w.a.flush(w.now, w.txToB)
}

// apply has b's user acknowledge some of what was delivered.
func (w *world) apply(n int) {
	w.applied[w.current] = max(w.applied[w.current], uint64(min(n, w.delivered)))
}

func (w *world) ackB(from, to uint64) {
	if w.current == (Session{}) {
		return
	}
	applied := w.applied[w.current]
	if w.cfgB.broken.earlyAck {
		applied = uint64(w.delivered)
	}
	w.txToA(w.b.appendAck(nil, w.nowB(), applied, from, to))
}

func (w *world) tickA() { w.a.tick(w.now, w.txToB); w.tellA() }
func (w *world) tickB() { w.b.tick(w.nowB()); w.ackB(0, 0) }

func (w *world) deliverB(message []byte) {
	body := message[headerSize:]
	switch kind(message[3]) {
	case kindOpen:
		m, err := parseOpen(body)
		if err != nil {
			w.fail("open: %v", err)
		}
		w.b.onOpen(w.nowB(), m, w.txToA)
	case kindData:
		m, err := parseData("a", body)
		if err != nil {
			w.fail("data: %v", err)
		}
		if from, to := w.b.onData(w.nowB(), m, w.txToA); from < to {
			w.ackB(from, to)
		}
	}
}

func (w *world) deliverA(message []byte) {
	body := message[headerSize:]
	switch kind(message[3]) {
	case kindAccept:
		m, err := parseAccept("b", body)
		if err != nil {
			w.fail("accept: %v", err)
		}
		w.a.onAccept(w.now, m, w.txToB)
	case kindAck:
		m, err := parseAck("b", body)
		if err != nil {
			w.fail("ack: %v", err)
		}
		w.a.onAck(w.now, m, w.txToB)
		w.tellA()
		w.a.settle()
	case kindUnknown:
		r := reader{b: body}
		w.a.onUnknown(w.now, r.session("b"))
	}
	w.tellA()
}

// take delivers message i of a direction; twice leaves it there.
func (w *world) take(toB bool, i int, twice bool) {
	queue := &w.toB
	if !toB {
		queue = &w.toA
	}
	if len(*queue) == 0 {
		return
	}
	i = min(i, len(*queue)-1)
	m := (*queue)[i]
	w.note("deliver %d of %d, to b: %v, kind %d, again: %v", i, len(*queue), toB, m[3], twice)
	if !twice {
		*queue = slices.Delete(*queue, i, i+1)
	} else {
		m = slices.Clone(m)
	}
	if toB {
		w.deliverB(m)
	} else {
		w.deliverA(m)
	}
}

// settleDown has the network behave and checks that everything arrives.
func (w *world) settleDown() {
	for round := 0; w.failed == nil; round++ {
		for len(w.toB)+len(w.toA) > 0 && w.failed == nil {
			w.take(true, 0, false)
			w.take(false, 0, false)
		}
		w.apply(w.delivered)
		s := key(w.up)
		done := s != (Session{}) && s == w.current && w.delivered == len(w.sent[s]) && w.a.acked == w.a.last && !w.b.silent && !w.a.lapsed
		if done && w.nowB() <= w.b.currentUntil() && len(w.a.fading) == 0 {
			return
		}
		if round == 200 {
			w.fail("no end: a has %+v with %d frames, acknowledged %d; b has %v with %d frames, silent %v", w.up, len(w.sent[s]), w.a.acked, w.current, w.delivered, w.b.silent)
		}
		w.now += w.cfgA.Heartbeat / 2
		w.tickA()
		w.tickB()
		w.check()
	}
}

// step is one decision of a random schedule.
func (w *world) step() {
	switch d := w.choose(100); {
	case d < 25:
		w.take(true, w.choose(len(w.toB)+1), w.choose(8) == 0)
	case d < 50:
		w.take(false, w.choose(len(w.toA)+1), w.choose(8) == 0)
	case d < 58: // in order
		w.take(true, 0, false)
		w.take(false, 0, false)
	case d < 62 && len(w.toB) > 0:
		i := w.choose(len(w.toB))
		w.toB = slices.Delete(w.toB, i, i+1)
	case d < 66 && len(w.toA) > 0:
		i := w.choose(len(w.toA))
		w.toA = slices.Delete(w.toA, i, i+1)
	case d < 78:
		for range 1 + w.choose(4) {
			w.send()
		}
	case d < 83:
		w.apply(w.choose(w.delivered + 1))
		w.ackB(0, 0)
	case d < 96:
		w.now += time.Duration(1+w.choose(60)) * time.Millisecond
		w.tickA()
		w.tickB()
	case d < 97: // one of them, or both, stand still for a while
		w.now += time.Duration(w.choose(1500)) * time.Millisecond
		if w.choose(2) == 0 {
			w.tickA()
		} else {
			w.tickB()
		}
	case d < 98 && w.choose(4) == 0:
		w.rebootA()
	case d < 99 && w.choose(4) == 0:
		w.rebootB()
	default:
		for range 5 { // an answer is there when nothing is held back
			w.take(true, len(w.toB), false)
			w.take(false, len(w.toA), false)
		}
	}
	// What is held back for ever is as good as lost.
	for _, q := range []*[][]byte{&w.toA, &w.toB} {
		if len(*q) > 60 {
			*q = slices.Delete(*q, 0, 20)
		}
	}
	w.check()
}

func runRandom(seed uint64, cfg Config) *world {
	w := newWorld(randomDecider{rand.New(rand.NewPCG(seed, 1))}, cfg)
	for range 100 + w.choose(400) {
		if w.failed != nil {
			return w
		}
		w.step()
	}
	w.settleDown()
	w.total.resent = int(w.a.count.resent)
	return w
}

func TestMachinesRandom(t *testing.T) {
	schedules := *schedulesFlag
	if schedules == 0 {
		schedules = 2000
		if testing.Short() {
			schedules = 300
		}
	}
	first := uint64(1)
	if *seedFlag != 0 {
		first, schedules = *seedFlag, 1
	}
	var delivered, sessions, lost, resumed, lapsed, resent int
	for seed := first; seed < first+uint64(schedules); seed++ {
		w := runRandom(seed, machineConfig())
		if w.failed != nil {
			tail := w.trace[max(0, len(w.trace)-40):]
			t.Fatalf("seed %d: %v\nlast steps:\n%s\nagain: go test ./transport/link -run TestMachinesRandom -link.seed=%d", seed, w.failed, lines(tail), seed)
		}
		delivered += w.total.delivered
		sessions += w.total.sessions
		lost += w.total.lost
		resumed += w.total.resumed
		lapsed += w.total.lapsed
		resent += w.total.resent
	}
	t.Logf("%d schedules: %d frames in %d sessions, %d lost, %d silences ended, %d lapses, %d frames resent", schedules, delivered, sessions, lost, resumed, lapsed, resent)
	if schedules >= 300 && (delivered < 50*schedules/10 || resumed == 0 || lapsed == 0 || lost == 0 || resent == 0) {
		t.Error("the schedules hardly test anything")
	}
}

func lines(s []string) (out string) {
	for _, l := range s {
		out += "  " + l + "\n"
	}
	return out
}

// exhaustive enumerates all decisions: an odometer of what was chosen.
type exhaustive struct {
	digits, bases []int
	at            int
}

func (e *exhaustive) choose(n int) int {
	if e.at == len(e.digits) {
		e.digits, e.bases = append(e.digits, 0), append(e.bases, n)
	}
	e.at++
	return e.digits[e.at-1]
}

// next moves on to the next list of decisions; false at the end.
func (e *exhaustive) next() bool {
	e.at = 0
	for i := len(e.digits) - 1; i >= 0; i-- {
		if e.digits[i]++; e.digits[i] < e.bases[i] {
			e.digits, e.bases = e.digits[:i+1], e.bases[:i+1]
			return true
		}
	}
	return false
}

// smallStep is one decision of an exhaustive schedule.
func (w *world) smallStep() {
	switch w.choose(10) {
	case 0:
		w.take(true, 0, false)
	case 1:
		w.take(true, len(w.toB), false)
	case 2:
		w.take(true, 0, true)
	case 3:
		if len(w.toB) > 0 {
			w.toB = w.toB[1:]
		}
	case 4:
		w.take(false, 0, false)
	case 5:
		w.take(false, len(w.toA), true)
	case 6:
		w.send()
	case 7:
		w.apply(w.delivered)
		w.now += 120 * time.Millisecond
		w.tickA()
		w.tickB()
	case 8:
		w.now += w.cfgA.Timeout + 2*w.cfgA.Margin
		if w.choose(2) == 0 {
			w.rebootA()
		}
		w.tickA()
	case 9:
		w.rebootB()
	}
	w.check()
}

func runExhaustive(cfg Config, depth int, each func(*world) bool) (n int) {
	e := &exhaustive{}
	for {
		w := newWorld(e, cfg)
		// A session stands, two frames are on their way in two messages.
		w.tickA()
		for range 3 {
			w.take(true, 0, false)
			w.take(false, 0, false)
			w.tickB()
		}
		w.send()
		w.send()
		for range depth {
			if w.failed == nil {
				w.smallStep()
			}
		}
		w.settleDown()
		n++
		if !each(w) || !e.next() {
			return n
		}
	}
}

func TestMachinesExhaustive(t *testing.T) {
	depth := *depthFlag
	if testing.Short() {
		depth = min(depth, 3)
	}
	n := runExhaustive(machineConfig(), depth, func(w *world) bool {
		if w.failed != nil {
			t.Errorf("%v\n%s", w.failed, lines(w.trace))
		}
		return w.failed == nil
	})
	t.Logf("%d schedules of %d decisions", n, depth)
}

// TestMutants: each rule is needed.
func TestMutants(t *testing.T) {
	for name, broken := range map[string]mutant{
		"duplicates are not detected":   {duplicates: true},
		"acknowledged before applied":   {earlyAck: true},
		"boot ids are ignored":          {ignoreBoot: true},
		"nothing is resent":             {noResend: true},
		"sessions are mixed up":         {mixSessions: true},
		"a paused node trusts old news": {ownClock: true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := machineConfig()
			cfg.broken = broken
			for seed := range uint64(3000) {
				if w := runRandom(seed+1, cfg); w.failed != nil {
					t.Logf("found with seed %d: %v", seed+1, w.failed)
					return
				}
			}
			t.Error("not found")
		})
	}
}
