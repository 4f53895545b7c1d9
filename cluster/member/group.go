package member

import (
	"context"
	"errors"
	"fmt"
)

// group runs the parts of a member and stops them in reverse order of their start, one
// after the other. The first that ends takes the others with it.
type group struct {
	ctx    context.Context // done when the first part has ended, or the caller's is
	cancel context.CancelFunc
	parts  []*part
}

type part struct {
	what   string
	cancel context.CancelFunc // nil: only closed
	close  func() error
	ended  chan struct{}
	err    error // after ended
}

func newGroup(ctx context.Context) *group {
	g := &group{}
	g.ctx, g.cancel = context.WithCancel(ctx)
	return g
}

// run starts a part, which ends with its context.
func (g *group) run(what string, fn func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.ctx))
	p := &part{what: what, cancel: cancel, ended: make(chan struct{})}
	g.parts = append(g.parts, p)
	go func() {
		defer g.cancel()
		defer close(p.ended)
		p.err = fn(ctx)
	}()
}

// onStop closes something when everything that was started after it has ended.
func (g *group) onStop(what string, fn func() error) {
	g.parts = append(g.parts, &part{what: what, close: fn})
}

// cause returns the error of a part that has ended by itself.
func (g *group) cause() error {
	for _, p := range g.parts {
		if p.cancel == nil {
			continue
		}
		select {
		case <-p.ended:
			if p.err != nil {
				return fmt.Errorf("%s: %w", p.what, p.err)
			}
		default:
		}
	}
	return nil
}

// stop ends everything and returns what went wrong.
func (g *group) stop() error {
	g.cancel()
	var errs []error
	for i := len(g.parts) - 1; i >= 0; i-- {
		p := g.parts[i]
		err := error(nil)
		if p.cancel != nil {
			p.cancel()
			<-p.ended
			err = p.err
		} else {
			err = p.close()
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, fmt.Errorf("%s: %w", p.what, err))
		}
	}
	return errors.Join(errs...)
}
