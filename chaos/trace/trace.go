package trace

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// DefaultTokensPerID is the trace block of the public Mooncake traces, in tokens.
const DefaultTokensPerID = 512

// ErrRange is wrapped when ids or lengths leave what the package can hold
// (32-bit ids and token counts).
var ErrRange = errors.New("out of range")

// Trace is a list of requests. It is not changed after it was made, so any number
// of goroutines may read it.
type Trace struct {
	// Requests in file order: by time within a session, and in all known files by
	// time altogether; after Duplicate the copies follow one another.
	Requests []Request
	// TokensPerID is the number of tokens that one id stands for.
	TokensPerID int
}

// Request is one row.
type Request struct {
	Time    time.Duration // arrival, since the start of the trace
	Session uint32        // dense number of the session, by first appearance
	Turn    uint32        // place within the session, from 0
	Input   uint32        // prompt length in tokens
	Output  uint32        // tokens generated
	IDs     []uint32      // shared storage, not to be changed
}

// PromptTokens returns the number of tokens the prompt really has: Input, or what
// the ids cover when a file claims more.
func (t *Trace) PromptTokens(i int) int {
	r := &t.Requests[i]
	return min(int(r.Input), len(r.IDs)*t.TokensPerID)
}

// AppendTokens appends the prompt of request i: each id repeated TokensPerID times,
// cut at the input length.
func (t *Trace) AppendTokens(dst []uint32, i int) []uint32 {
	left := t.PromptTokens(i)
	for _, id := range t.Requests[i].IDs {
		n := min(left, t.TokensPerID)
		if n == 0 {
			break
		}
		for range n {
			dst = append(dst, id)
		}
		left -= n
	}
	return dst
}

// Span is the time of the last arrival.
func (t *Trace) Span() time.Duration {
	var last time.Duration
	for i := range t.Requests {
		last = max(last, t.Requests[i].Time)
	}
	return last
}

// MaxID returns the largest id; ok is false when the trace has none.
func (t *Trace) MaxID() (id uint32, ok bool) {
	for i := range t.Requests {
		for _, h := range t.Requests[i].IDs {
			id, ok = max(id, h), true
		}
	}
	return id, ok
}

// Sessions returns the number of sessions.
func (t *Trace) Sessions() int {
	n := 0
	for i := range t.Requests {
		n = max(n, int(t.Requests[i].Session)+1)
	}
	return n
}

// Head returns the first n requests (all when there are fewer), sharing storage.
func (t *Trace) Head(n int) *Trace {
	return &Trace{Requests: t.Requests[:min(n, len(t.Requests))], TokensPerID: t.TokensPerID}
}

// Scale applies a length factor: every id h becomes h*l, ..., h*l+l-1 and the input
// length is multiplied by l. Output lengths stay.
func (t *Trace) Scale(l int) (*Trace, error) {
	if l < 1 {
		return nil, fmt.Errorf("length factor %d: %w: must be at least 1", l, ErrRange)
	}
	total := 0
	for i := range t.Requests {
		r := &t.Requests[i]
		total += len(r.IDs) * l
		if uint64(r.Input)*uint64(l) > math.MaxUint32 {
			return nil, fmt.Errorf("length factor %d: request %d: %w: input length %d", l, i, ErrRange, r.Input)
		}
	}
	if top, _ := t.MaxID(); (uint64(top)+1)*uint64(l) > 1<<32 {
		return nil, fmt.Errorf("length factor %d: %w: id %d", l, ErrRange, top)
	}
	out := &Trace{Requests: make([]Request, len(t.Requests)), TokensPerID: t.TokensPerID}
	ids := make([]uint32, 0, total)
	for i := range t.Requests {
		r := t.Requests[i]
		from := len(ids)
		for _, h := range r.IDs {
			for j := range l {
				ids = append(ids, h*uint32(l)+uint32(j))
			}
		}
		r.IDs = ids[from:len(ids):len(ids)]
		r.Input *= uint32(l)
		out.Requests[i] = r
	}
	return out, nil
}

// Duplicate returns d copies one after another: copy c adds (largest id + 1)*c to
// every id and has its own sessions; times stay.
func (t *Trace) Duplicate(d int) (*Trace, error) {
	if d < 1 {
		return nil, fmt.Errorf("duplication factor %d: %w: must be at least 1", d, ErrRange)
	}
	top, _ := t.MaxID()
	step := uint64(top) + 1
	if step*uint64(d) > 1<<32 {
		return nil, fmt.Errorf("duplication factor %d: %w: id %d", d, ErrRange, top)
	}
	total := 0
	for i := range t.Requests {
		total += len(t.Requests[i].IDs)
	}
	sessions := t.Sessions()
	if uint64(sessions)*uint64(d) > math.MaxUint32 {
		return nil, fmt.Errorf("duplication factor %d: %w: %d sessions", d, ErrRange, sessions)
	}
	out := &Trace{Requests: make([]Request, 0, len(t.Requests)*d), TokensPerID: t.TokensPerID}
	ids := make([]uint32, 0, total*d)
	for c := range d {
		add := uint32(step * uint64(c))
		for i := range t.Requests {
			r := t.Requests[i]
			from := len(ids)
			for _, h := range r.IDs {
				ids = append(ids, h+add)
			}
			r.IDs = ids[from:len(ids):len(ids)]
			r.Session += uint32(c * sessions)
			out.Requests = append(out.Requests, r)
		}
	}
	return out, nil
}

// InferSessions returns a copy in which a request that continues an earlier one
// belongs to its session: it repeats at least two ids of it, the second one
// included, and the longest such continuation counts. It is meant for files
// without session ids, in which every row is a session of its own.
func (t *Trace) InferSessions() *Trace {
	out := &Trace{Requests: make([]Request, len(t.Requests)), TokensPerID: t.TokensPerID}
	owner := make(map[uint32]uint32) // id at depth >= 1 -> session that showed it last
	var turns []uint32
	for i := range t.Requests {
		r := t.Requests[i]
		session, found := uint32(0), false
		for j := len(r.IDs) - 1; j >= 1 && !found; j-- {
			session, found = owner[r.IDs[j]]
		}
		if !found {
			session = uint32(len(turns))
			turns = append(turns, 0)
		}
		r.Session, r.Turn = session, turns[session]
		turns[session]++
		for j := 1; j < len(r.IDs); j++ {
			owner[r.IDs[j]] = session
		}
		out.Requests[i] = r
	}
	return out
}

// AtRate returns a copy with the arrivals stretched evenly so that perSecond
// requests come in a second on average; bursts keep their shape. A trace whose
// requests all come at once is spread evenly.
func (t *Trace) AtRate(perSecond float64) (*Trace, error) {
	if !(perSecond > 0) || math.IsInf(perSecond, 0) {
		return nil, fmt.Errorf("request rate %g: %w: must be above 0", perSecond, ErrRange)
	}
	out := &Trace{Requests: append([]Request(nil), t.Requests...), TokensPerID: t.TokensPerID}
	want := float64(len(t.Requests)) / perSecond * float64(time.Second)
	if want > math.MaxInt64/2 {
		return nil, fmt.Errorf("request rate %g: %w: the trace would last for centuries", perSecond, ErrRange)
	}
	span := float64(t.Span())
	for i := range out.Requests {
		r := &out.Requests[i]
		if span > 0 {
			r.Time = time.Duration(float64(r.Time) / span * want)
		} else {
			r.Time = time.Duration(float64(i) / perSecond * float64(time.Second))
		}
	}
	return out, nil
}
