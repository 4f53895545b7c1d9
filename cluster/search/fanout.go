package search

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// maxCalls bounds the calls for one question.
const maxCalls = 8

// maxWhy bounds what is repeated of an error.
const maxWhy = 200

// reply is the outcome of one call.
type reply struct {
	peer *peer
	body []byte
	err  error
	took time.Duration
}

// failure is why an owner's answer is missing.
type failure struct {
	owner string
	why   string
}

// errEnded: the search has been stopped.
var errEnded = errors.New("this node is shutting down")

// askOthers answers what is left of x.question by calls to other owners. Its contract:
//
//   - Selection. Only owners that the log calls ready in the present view are asked, those
//     first that are alive and whose calls cost least (recent latency times calls under
//     way). An owner is asked once under one view. One that seems dead is asked only when no
//     other is left, and at most once a second.
//   - Number. One call at a time, and at most maxCalls in all.
//   - Hedging. A call without an answer for the pacer's delay is left running and the next
//     owner is asked too; the first usable answer counts. About every tenth call may be
//     hedged early, any may after half of the deadline.
//   - Failure. An error, or an answer that cannot be used, leads to the next owner at once.
//   - Stale plans (rule Q2). An owner that says it is none, at a later map index than ours,
//     makes this node catch up and choose again.
//   - Slots (rule Q7). The first answer gives the pin. What it could not read is asked of
//     the next owner, at or above the pin, until no slot or no owner is left.
//   - Time. Everything ends with the deadline of the request or its context, whichever is
//     first. An answer counts only once this node's view has reached its map index.
//   - Clean-up. On return every call that is still running is cancelled. Its answer goes
//     nowhere: the channel has room for all of them, so no goroutine is left waiting.
//   - Result. What is still missing is in x.lacks, with the reason of every owner asked.
func (x *Searcher) askOthers() {
	s := x.s
	ctx, cancel := x.context()
	defer cancel()
	f := fan{x: x, ctx: ctx, replies: make(chan reply, maxCalls)}
	x.asked = x.asked[:0]
	if !f.launch() {
		f.missing()
		return
	}
	hedge := time.NewTimer(s.pacer.delay())
	defer hedge.Stop()
	for {
		more := false // another owner is to be asked at once
		select {
		case r := <-f.replies:
			f.landed(r.peer)
			var done bool
			if done, more = f.take(r); done {
				return
			}
		case <-hedge.C:
			if f.launch() {
				s.count.hedges.Add(1)
				s.pacer.spend()
				hedge.Reset(s.pacer.delay())
			}
		case <-ctx.Done():
			f.timeout()
			f.missing()
			return
		}
		if more && !f.launch() && len(f.flying) == 0 {
			f.missing()
			return
		}
	}
}

// fan is one run of askOthers.
type fan struct {
	x       *Searcher
	ctx     context.Context
	replies chan reply
	request []byte  // encoded; shared by running calls, so never changed
	index   uint64  // the map index in request
	flying  []*peer // calls under way
	calls   int
	first   *peer
}

// context returns the context of the request with its deadline.
func (x *Searcher) context() (context.Context, context.CancelFunc) {
	ctx := x.ctx
	if ctx == nil {
		ctx = context.Background()
	}
	if x.deadline.IsZero() { // the first call of the request: it spent no time to speak of before
		x.deadline = time.Now().Add(x.s.cfg.Deadline)
	}
	return context.WithDeadline(ctx, x.deadline)
}

// launch asks the best owner that was not asked yet; false when there is none.
func (f *fan) launch() bool {
	x, s := f.x, f.x.s
	if f.calls == maxCalls || f.ctx.Err() != nil {
		return false
	}
	plan := s.plan()
	p := x.choose(plan.segment(x.question.query.Partition).others)
	if p == nil {
		return false
	}
	if !s.begin() {
		x.fail(p.name, errEnded)
		return false
	}
	x.asked = append(x.asked, p)
	if index := max(plan.view.Index, x.pin); f.request == nil || f.index < index {
		x.question.index, f.index = index, index
		f.request = appendQuestion(make([]byte, 0, requestHead+8*len(x.question.query.Locals)+8*len(x.question.rows)), &x.question)
	}
	if f.calls == 0 {
		f.first = p
		s.pacer.earn()
	}
	f.calls++
	f.flying = append(f.flying, p)
	s.count.calls.Add(1)
	p.flying.Add(1)
	ctx, request, replies := f.ctx, f.request, f.replies
	go func() {
		defer s.end()
		start := time.Now()
		body, err := s.deps.Call(ctx, p.name, Method, request)
		end := time.Now()
		p.flying.Add(-1)
		took := end.Sub(start)
		switch {
		case err == nil:
			s.pacer.note(took)
			p.note(took, end)
		case errors.Is(err, context.Canceled): // another was faster, or the client is gone
			p.note(took, end)
		default:
			p.note(s.cfg.Deadline, end)
		}
		replies <- reply{peer: p, body: body, err: err, took: took}
	}()
	return true
}

// choose returns the best owner that was not asked yet, or nil.
func (x *Searcher) choose(owners []*peer) (best *peer) {
	now := time.Now()
	var price float64
	from := int(x.s.turn.Add(1)) // so that equal ones take turns
	for i := range owners {
		p := owners[(from+i)%len(owners)]
		if slices.Contains(x.asked, p) || !x.s.deps.Alive(p.name) {
			continue
		}
		if c := p.price(now); best == nil || c < price {
			best, price = p, c
		}
	}
	if best != nil {
		return best
	}
	for _, p := range owners { // they only seem dead, perhaps
		if slices.Contains(x.asked, p) {
			continue
		}
		if p.probe(now) {
			return p
		}
		x.fail(p.name, errNotAlive)
		x.asked = append(x.asked, p)
	}
	return nil
}

var errNotAlive = errors.New("not alive")

// take takes a reply: done when nothing is left to ask, more when another owner is to be
// asked at once.
func (f *fan) take(r reply) (done, more bool) {
	x, s := f.x, f.x.s
	if r.err != nil {
		s.count.failed(r.err)
		x.fail(r.peer.name, r.err)
		return false, len(f.flying) == 0
	}
	a := &x.remote
	if err := decodeAnswer(r.body, &x.question, a, &x.seen); err != nil {
		s.count.bad.Add(1)
		x.fail(r.peer.name, err)
		return false, len(f.flying) == 0
	}
	if a.status != statusOK {
		s.count.notOwner.Add(1)
		return false, f.replan(r.peer, a) || len(f.flying) == 0
	}
	if !s.cfg.broken.oldView {
		if err := s.catchUp(f.ctx, a.index); err != nil {
			s.count.behind.Add(1)
			x.failures = append(x.failures, failure{r.peer.name, err.Error()})
			return false, len(f.flying) == 0
		}
	}
	switch {
	case !x.started:
		x.local, x.remote = *a, x.local
		x.first(r.peer.name, &x.local)
	case a.index < x.pin: // of a call from before the first answer
		x.fail(r.peer.name, fmt.Errorf("answered at map index %d, below %d", a.index, x.pin))
		x.asked = slices.DeleteFunc(x.asked, func(p *peer) bool { return p == r.peer })
		return false, len(f.flying) == 0
	default:
		x.further(r.peer.name, a)
	}
	if !s.lease.held() {
		x.lacks.stale(s.cfg.Name, s.lease.age())
	}
	if r.peer != f.first && slices.Contains(f.flying, f.first) {
		s.count.hedgesWon.Add(1)
	}
	return len(x.open.list) == 0, len(f.flying) == 0
}

// landed takes a peer out of those whose calls are under way.
func (f *fan) landed(p *peer) {
	f.flying = slices.DeleteFunc(f.flying, func(o *peer) bool { return o == p })
}

// replan takes note that an owner calls itself none. If it knows a later map, this node
// catches up with it, and all owners of that may be asked: true.
func (f *fan) replan(p *peer, a *answer) bool {
	x, s := f.x, f.x.s
	why := "is no owner"
	if a.status == statusNotReady {
		why = "has not filled the partition yet"
	}
	x.failures = append(x.failures, failure{p.name, fmt.Sprintf("%s (map index %d)", why, a.index)})
	if a.index <= f.index {
		return false
	}
	s.count.replans.Add(1)
	if err := s.catchUp(f.ctx, a.index); err != nil {
		x.failures = append(x.failures, failure{s.cfg.Name, err.Error()})
		return false
	}
	x.asked = append(x.asked[:0], f.flying...)
	return true
}

// timeout notes the calls that did not come back in time.
func (f *fan) timeout() {
	x := f.x
	why := f.ctx.Err()
	for _, p := range x.asked {
		answered := false
		for _, w := range x.failures {
			answered = answered || w.owner == p.name
		}
		if !answered {
			x.s.count.failed(why)
			x.fail(p.name, why)
		}
	}
}

// missing says what the question's answer lacks.
func (f *fan) missing() {
	x := f.x
	if !x.started {
		x.pin = x.s.deps.View().Index
		x.lacks.partition(x.question.query.Partition, x.failures)
		return
	}
	x.lacks.slots(x, x.s.deps.View())
}

func (x *Searcher) fail(owner string, err error) {
	why := err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		why = fmt.Sprintf("no answer within %v", x.s.cfg.Deadline)
	}
	if len(why) > maxWhy { // another node's words
		why = why[:maxWhy] + "..."
	}
	x.failures = append(x.failures, failure{owner, why})
}
