package fanout

import (
	"context"
	"sync"
	"time"
)

// pacer spreads bytes over time.
type pacer struct {
	rate int64 // bytes a second; 0 = no bound
	mu   sync.Mutex
	free time.Time // when the next byte may go
}

// burst is how far the pacer may run ahead.
const burst = 50 * time.Millisecond

// wait takes room for n bytes and waits for it.
func (p *pacer) wait(ctx context.Context, n int) error {
	if p.rate == 0 {
		return ctx.Err()
	}
	p.mu.Lock()
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	ahead := p.free.Sub(now) - burst
	p.mu.Unlock()
	if ahead <= 0 {
		return ctx.Err()
	}
	return sleep(ctx, ahead)
}
