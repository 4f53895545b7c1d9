package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var errStale = errors.New("stale map")

func callFleet(t testing.TB) *fleet {
	f := newFleet(t, 1, "a", "b", "c")
	f.cfg = func(c *Config) {
		c.Errors = map[string]error{"stale": errStale}
		c.CallsPerPeer = 4
	}
	f.startAll()
	f.nodes[1].Handle("echo", func(_ context.Context, peer string, req []byte) ([]byte, error) {
		return fmt.Appendf(nil, "%s:%s", peer, req), nil
	})
	f.nodes[1].Handle("fail", func(_ context.Context, _ string, req []byte) ([]byte, error) {
		switch string(req) {
		case "stale":
			return nil, fmt.Errorf("read at 7: %w", errStale)
		case "deadline":
			return nil, fmt.Errorf("disk: %w", context.DeadlineExceeded)
		case "large":
			return make([]byte, 60_000), nil
		}
		return nil, errors.New("no code")
	})
	for _, i := range []int{0, 2} {
		f.nodes[i].session("b", Session{})
	}
	return f
}

func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := callFleet(t)
		defer f.stopAll()
		a := f.nodes[0]
		ctx := t.Context()
		if got, err := a.Call(ctx, "b", "echo", []byte("hello")); err != nil || string(got) != "a:hello" {
			t.Errorf("echo: %q, %v", got, err)
		}
		long := bytes.Repeat([]byte("x"), 49_000)
		if got, err := a.Call(ctx, "b", "echo", long); err != nil || len(got) != 49_002 {
			t.Errorf("long echo: %d bytes, %v", len(got), err)
		}
		for _, c := range []struct {
			peer, method, req string
			want              error
			code              string
		}{
			{"b", "fail", "stale", errStale, "stale"},
			{"b", "fail", "deadline", context.DeadlineExceeded, "deadline"},
			{"b", "fail", "large", ErrTooLarge, "large"},
			{"b", "nothing", "", ErrMethod, "method"},
			{"nobody", "echo", "", ErrPeer, ""},
			{"b", "echo", string(make([]byte, 50_001)), ErrTooLarge, ""},
		} {
			_, err := a.Call(ctx, c.peer, c.method, []byte(c.req))
			var remote *CallError
			if !errors.Is(err, c.want) || errors.As(err, &remote) != (c.code != "") || remote != nil && remote.Code != c.code {
				t.Errorf("%+v: %v", c.want, err)
			}
		}
		_, err := a.Call(ctx, "b", "fail", nil)
		var remote *CallError
		if !errors.As(err, &remote) || remote.Code != "" || err.Error() != "call fail of b: no code" {
			t.Errorf("error without a code: %v", err)
		}
	})
}

// TestCallTimes: calls end with their deadline on both sides, late answers go
// nowhere, and one that has no way ends at once.
func TestCallTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := callFleet(t)
		defer f.stopAll()
		a, b := f.nodes[0], f.nodes[1]
		ended := make(chan error, 10)
		b.Handle("wait", func(ctx context.Context, _ string, req []byte) ([]byte, error) {
			<-ctx.Done()
			ended <- ctx.Err()
			time.Sleep(time.Second)
			return []byte("late"), nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		start := time.Now()
		_, err := a.Call(ctx, "b", "wait", nil)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 300*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		synctest.Wait()
		if err := <-ended; err == nil || time.Since(start) > 310*time.Millisecond {
			t.Errorf("the served call ended after %v: %v", time.Since(start), err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		if _, err := a.Call(ctx, "b", "wait", nil); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the served call ended with %v", err)
		}
		time.Sleep(2 * time.Second)
		if s := a.Stats(); s.Late != 2 {
			t.Errorf("late answers: %+v", s)
		}

		// A lost request, and a peer that is away.
		f.net.CutMesh("a", "b")
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		start = time.Now()
		if _, err := a.Call(ctx, "b", "echo", nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("lost: after %v: %v", time.Since(start), err)
		}
		cancel()
		f.net.HealMesh("a", "b")
		b.stop()
		start = time.Now()
		if _, err := a.Call(t.Context(), "b", "echo", nil); !errors.Is(err, ErrDown) || time.Since(start) != 0 {
			t.Errorf("away: after %v: %v", time.Since(start), err)
		}
		if _, err := b.Call(t.Context(), "a", "echo", nil); !errors.Is(err, ErrClosed) {
			t.Errorf("from a hub that has ended: %v", err)
		}
	})
}

// TestCallsBounded: one peer gets its share of goroutines, and takes none of
// another's.
func TestCallsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := callFleet(t)
		defer f.stopAll()
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		var running, most atomic.Int64
		b.Handle("slow", func(context.Context, string, []byte) ([]byte, error) {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Second)
			running.Add(-1)
			return nil, nil
		})
		var busy, served atomic.Int64
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				switch _, err := a.Call(t.Context(), "b", "slow", nil); {
				case errors.Is(err, ErrBusy):
					busy.Add(1)
				case err == nil:
					served.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		if _, err := c.Call(t.Context(), "b", "echo", nil); err != nil || time.Since(start) > 0 {
			t.Errorf("call of another peer: %v after %v", err, time.Since(start))
		}
		wg.Wait()
		if served.Load() != 4 || busy.Load() != 16 || most.Load() != 4 || b.Stats().Busy != 16 {
			t.Errorf("served %d, at most %d at once, turned away %d", served.Load(), most.Load(), busy.Load())
		}
	})
}

// TestCallsInBadWeather: under loss, repetition and reordering a call is carried out
// at most once and an answer belongs to its call; and hubs end with calls open.
func TestCallsInBadWeather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := callFleet(t)
		a, b := f.nodes[0], f.nodes[1]
		var mu sync.Mutex
		done := map[string]int{}
		b.Handle("once", func(_ context.Context, _ string, req []byte) ([]byte, error) {
			mu.Lock()
			done[string(req)]++
			mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			return req, nil
		})
		f.net.SetMeshFault("a", "b", f.weather(10, 0, 50))
		f.net.SetMeshFault("b", "a", f.weather(10, 50, 50))
		var ok, failed atomic.Int64
		for i := range 300 {
			var wg sync.WaitGroup
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				req := fmt.Sprint("call ", i)
				switch got, err := a.Call(ctx, "b", "once", []byte(req)); {
				case err == nil && string(got) == req:
					ok.Add(1)
				case errors.Is(err, context.DeadlineExceeded):
					failed.Add(1)
				default:
					t.Errorf("%s: %q, %v", req, got, err)
				}
			})
			wg.Wait()
		}
		if ok.Load() < 200 || failed.Load() == 0 || a.Stats().Late == 0 {
			t.Errorf("%d answered, %d not, %d late", ok.Load(), failed.Load(), a.Stats().Late)
		}
		for req, n := range done {
			if n > 1 {
				t.Errorf("%s was carried out %d times", req, n)
			}
		}
		f.heal()
		b.Handle("hang", func(ctx context.Context, _ string, _ []byte) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() })
		result := make(chan error, 1)
		go func() {
			_, err := a.Call(t.Context(), "b", "hang", nil)
			result <- err
		}()
		synctest.Wait()
		f.stopAll()
		if err := <-result; err == nil {
			t.Error("a call outlived its hub")
		}
	})
}
