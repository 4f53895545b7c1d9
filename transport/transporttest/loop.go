package transporttest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/transport"
)

func testPost(t *testing.T, h Harness) {
	l := start(t, h.New(t), "post")
	const goroutines, n = 8, 2000
	// Only the loop touches it.
	got := make([][]int, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range n {
				if !l.Post(func() { got[g] = append(got[g], i) }) {
					t.Error("a running loop refused a post")
				}
			}
		})
	}
	wg.Wait()
	on(t, l, func() {
		for g := range got {
			if len(got[g]) != n || !slices.IsSorted(got[g]) {
				t.Errorf("goroutine %d: %d of %d posts ran, in order: %v", g, len(got[g]), n, slices.IsSorted(got[g]))
			}
		}
	})
	nested := make(chan string, 2)
	l.Post(func() {
		l.Post(func() { nested <- "inner" })
		nested <- "outer"
	})
	if a, b := <-nested, <-nested; a != "outer" || b != "inner" {
		t.Errorf("a post from the loop ran first: %s, %s", a, b)
	}
}

// testPostAtEnd shows that a post that was accepted is run, whenever the loop ends,
// so nobody who waits for one waits for ever.
func testPostAtEnd(t *testing.T, h Harness) {
	net := h.New(t)
	for range 20 {
		l, end := startEnding(t, net, "ending")
		var accepted, ran atomic.Int64
		begun := make(chan struct{})
		var once sync.Once
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					if !l.Post(func() { ran.Add(1) }) {
						return
					}
					accepted.Add(1)
					if i == 100 {
						once.Do(func() { close(begun) })
					}
				}
			})
		}
		<-begun
		end()
		wg.Wait()
		if accepted.Load() != ran.Load() {
			t.Fatalf("%d posts were accepted, %d ran", accepted.Load(), ran.Load())
		}
		if l.Post(func() { t.Error("ran after the end") }) {
			t.Fatal("a post was accepted after the end")
		}
	}
	l, end := startEnding(t, net, "ending")
	result := make(chan error, 1)
	l.Post(func() {
		go end()
		// This runs on the loop while it is about to end, and is accepted.
		l.Post(func() {})
	})
	end()
	l2, end2 := startEnding(t, net, "ending with a late subscription")
	hold := make(chan struct{})
	l2.Post(func() { <-hold })
	l2.Post(func() {
		_, err := l2.Subscribe(transport.SubscribeConfig{Endpoint: h.Fixed(t)}, NewRecorder())
		result <- err
	})
	go end2()
	close(hold)
	// Either it was in time or it is told.
	if err := <-result; err != nil && !errors.Is(err, transport.ErrClosed) {
		t.Errorf("subscribe at the end: %v", err)
	}
}

func testTimers(t *testing.T, h Harness) {
	l := start(t, h.New(t), "timers")
	fired := make(chan string, 100)
	set := func(d time.Duration, name string) (tm transport.Timer) {
		return l.AfterFunc(d, func() { fired <- name })
	}
	var began time.Time
	on(t, l, func() {
		began = l.Now()
		set(30*time.Millisecond, "d")
		set(10*time.Millisecond, "b")
		stopped := set(15*time.Millisecond, "stopped")
		set(20*time.Millisecond, "c")
		set(0, "a")
		set(-time.Second, "a2")
		if !stopped.Stop() {
			t.Error("Stop of a waiting timer reports false")
		}
		if stopped.Stop() {
			t.Error("the second Stop reports true")
		}
	})
	for _, want := range []string{"b", "c", "d"} {
		got := <-fired
		for got == "a" || got == "a2" {
			got = <-fired
		}
		if got != want {
			t.Fatalf("timer %s ran, want %s", got, want)
		}
	}
	on(t, l, func() {
		if d := l.Now().Sub(began); d < 30*time.Millisecond {
			t.Errorf("timers of 30 ms had run after %v", d)
		}
	})
	// One that sets itself again must not hold up anything else.
	var again func()
	var stop atomic.Bool
	again = func() {
		if !stop.Load() {
			l.AfterFunc(time.Microsecond, again)
		}
	}
	on(t, l, again)
	on(t, l, func() { set(5*time.Millisecond, "late") })
	if got := <-fired; got != "late" {
		t.Errorf("timer %s ran, want late", got)
	}
	stop.Store(true)

	on(t, l, func() {
		var tm transport.Timer
		tm = l.AfterFunc(0, func() { fired <- fmt.Sprint("stop in its own function: ", tm.Stop()) })
	})
	if got := <-fired; got != "stop in its own function: false" {
		t.Error(got)
	}
	// Equal times keep their order.
	on(t, l, func() {
		for i := range 50 {
			set(time.Millisecond, fmt.Sprint(i))
		}
	})
	last := -1
	for range 50 {
		var i int
		fmt.Sscan(<-fired, &i)
		if i < last {
			t.Errorf("timer %d ran after %d", i, last)
		}
		last = i
	}
}

func testTimersEndWithLoop(t *testing.T, h Harness) {
	l, end := startEnding(t, h.New(t), "timers")
	on(t, l, func() {
		for i := range 10 {
			l.AfterFunc(time.Hour+time.Duration(i), func() { t.Error("a timer ran after the end of its loop") })
		}
	})
	end()
}

func testCloseInHandler(t *testing.T, h Harness) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t)})
	l, r, other := start(t, net, "close"), NewRecorder(), NewRecorder()
	var s transport.Socket
	r.Do = func(frames [][]byte) bool {
		if bigEndian(frames[1]) == 50 {
			s.Close()
			s.Close() // twice does no harm
		}
		return true
	}
	s = subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
	subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, other)
	r.AwaitStream(t, p, "")
	other.AwaitStream(t, p, "")
	for seq := uint64(1); seq <= 200; seq++ {
		publish(t, p, "", seq, nil)
	}
	other.Await(t, "all batches", func(s Seen) bool { return len(s.Batches()) == 200 })
	r.Await(t, "the batch at which it closes", func(s Seen) bool { return len(s.Batches()) >= 50 })
	for seq := uint64(201); seq <= 300; seq++ {
		publish(t, p, "", seq, nil)
	}
	other.Await(t, "all batches", func(s Seen) bool { return len(s.Batches()) == 300 })
	// Whatever the closed socket had still to say would have come by now.
	if got := r.Seen().Sequences(); !slices.Equal(got, numbers(1, 50)) {
		t.Errorf("a socket closed at 50 got %v", got)
	}
	if n := l.Stats().Sockets; n != 1 {
		t.Errorf("%d sockets are open, want 1", n)
	}
}

func testCloseWhileBusy(t *testing.T, h Harness) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t), ReplayEndpoint: h.Bind(t)})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		payload := make([]byte, 256)
		for seq := uint64(1); ; seq++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := p.Publish("", seq, payload); err != nil {
				t.Errorf("publish: %v", err)
				return
			}
			if seq%100 == 0 {
				time.Sleep(100 * time.Microsecond) // paces the sender, waits for nothing
			}
		}
	})
	for range 5 {
		l, end := startEnding(t, net, "busy")
		got := newCountdown(100)
		r := NewRecorder()
		r.Do = func([][]byte) bool { got.done(); return false }
		for range 5 {
			subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
		}
		replay := openReplay(t, l, p.ReplayEndpoint(), r)
		request(t, l, replay, 0)
		got.await(t, "some batches", nil)
		end()
		if s := l.Stats(); s.Sockets != 0 {
			t.Errorf("%d sockets are open after the end", s.Sockets)
		}
	}
	close(stop)
	wg.Wait()
}

// testOneAtATime has messages, posts and timers touch the same variable without a
// lock: the race detector judges.
func testOneAtATime(t *testing.T, h Harness) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t)})
	l, r := start(t, net, "one"), NewRecorder()
	n := 0
	done := newCountdown(300)
	r.Do = func(frames [][]byte) bool {
		if !isProbe(frames) {
			n++
			done.done()
			return false
		}
		return true
	}
	subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
	r.AwaitStream(t, p, "")
	for i := range uint64(100) {
		publish(t, p, "", i, nil)
		l.Post(func() {
			n++
			done.done()
			l.AfterFunc(time.Millisecond, func() { n++; done.done() })
		})
	}
	done.await(t, "300 things", nil)
	on(t, l, func() {
		if n != 300 {
			t.Errorf("%d of 300 counted", n)
		}
	})
}

func testStats(t *testing.T, h Harness) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t)})
	l, r := start(t, net, "counted"), NewRecorder()
	s := subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
	r.AwaitStream(t, p, "")
	before := l.Stats()
	r.Forget()
	for i := range uint64(10) {
		publish(t, p, "four", i, make([]byte, 88))
	}
	seen := r.Await(t, "ten batches", func(s Seen) bool { return len(s.Batches()) == 10 })
	on(t, l, func() {}) // the counters of a delivery are added behind it
	after := l.Stats()
	var bytes uint64 // with the probes that were still on their way
	for _, m := range seen.Messages {
		for _, f := range m {
			bytes += uint64(len(f))
		}
	}
	if d := after.Messages - before.Messages; d < 10 || d < uint64(len(seen.Messages)) {
		t.Errorf("%d messages counted, want at least %d", d, len(seen.Messages))
	}
	if d := after.Bytes - before.Bytes; d < 1000 {
		t.Errorf("%d bytes counted, want at least %d", d, bytes)
	}
	if after.Name != "counted" || after.Sockets != 1 || after.Connects != 1 || after.Disconnects != 0 || after.Wakeups == 0 {
		t.Errorf("stats: %+v", after)
	}
	closePublisher(t, p)
	r.Await(t, "OnDisconnect", func(s Seen) bool { return s.Disconnects == 1 })
	hold, held := make(chan struct{}), make(chan struct{})
	l.Post(func() { close(held); <-hold })
	<-held
	l.Post(func() {})
	l.Post(s.Close)
	if n := l.Stats().PendingPosts; n != 2 {
		t.Errorf("%d posts are pending, want 2", n)
	}
	close(hold)
	on(t, l, func() {})
	if st := l.Stats(); st.Sockets != 0 || st.Disconnects != 1 || st.PendingPosts != 0 {
		t.Errorf("stats at the end: %+v", st)
	}
}

func testClosedPublisher(t *testing.T, h Harness) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t), ReplayEndpoint: h.Bind(t)})
	if p.Endpoint() == "" || p.ReplayEndpoint() == "" || p.Endpoint() == p.ReplayEndpoint() {
		t.Errorf("endpoints %q and %q", p.Endpoint(), p.ReplayEndpoint())
	}
	closePublisher(t, p)
	closePublisher(t, p)
	for op, err := range map[string]error{
		"publish": p.Publish("", 1, nil),
		"record":  p.Record("", 1, nil),
		"raw":     p.SendRaw([]byte("x")),
		"forget":  p.ForgetReplay(),
	} {
		if !errors.Is(err, transport.ErrClosed) {
			t.Errorf("%s on a closed publisher: %v, want ErrClosed", op, err)
		}
	}
}
