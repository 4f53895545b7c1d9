package memory_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/memory"
	"github.com/kvcluster/kvcluster/transport/transporttest"
)

const (
	live     = "tcp://engine:5557"
	replayAt = "tcp://engine:5558"
)

// world is one engine and one loop that listens to it, in a bubble.
type world struct {
	t      *testing.T
	net    *memory.Network
	engine transport.Publisher
	loop   transport.Loop
	stream *transporttest.Recorder
	replay *transporttest.Recorder
	dealer transport.ReplaySocket
	start  time.Time
}

// inWorld runs f with everything connected.
func inWorld(t *testing.T, cfg memory.Config, sub transport.SubscribeConfig, f func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, net: memory.New(cfg), stream: transporttest.NewRecorder(), replay: transporttest.NewRecorder()}
		w.newEngine()
		w.loop = runLoop(t, w.net)
		sub.Endpoint = live
		w.on(func() {
			var err error
			if _, err = w.loop.Subscribe(sub, w.stream); err != nil {
				t.Fatal(err)
			}
			if w.dealer, err = w.loop.OpenReplay(replayAt, w.replay); err != nil {
				t.Fatal(err)
			}
		})
		synctest.Wait()
		w.start = time.Now()
		f(w)
	})
}

func runLoop(t *testing.T, n *memory.Network) transport.Loop {
	t.Helper()
	l, err := n.NewLoop("test")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

func (w *world) newEngine() {
	w.t.Helper()
	p, err := w.net.NewPublisher(transport.PublisherConfig{Endpoint: live, ReplayEndpoint: replayAt, HighWater: 10})
	if err != nil {
		w.t.Fatal(err)
	}
	w.engine = p
	w.t.Cleanup(func() { p.Close() })
}

func (w *world) on(fn func()) {
	done := make(chan struct{})
	if !w.loop.Post(func() { fn(); close(done) }) {
		w.t.Fatal("the loop has ended")
	}
	<-done
}

func (w *world) publish(from, to uint64) {
	w.t.Helper()
	for seq := from; seq <= to; seq++ {
		if err := w.engine.Publish("kv", seq, []byte("payload")); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) request(start uint64) {
	w.t.Helper()
	w.on(func() {
		if err := w.dealer.Request(start); err != nil {
			w.t.Error(err)
		}
	})
}

// expect checks, once everything that is due now has happened, how the stream
// stands.
func (w *world) expect(seqs []uint64, connects, disconnects int) {
	w.t.Helper()
	synctest.Wait()
	s := w.stream.Seen()
	if !slices.Equal(s.Sequences(), seqs) || s.Connects != connects || s.Disconnects != disconnects {
		w.t.Fatalf("after %v: sequences %v, %d connects, %d disconnects; want %v, %d, %d; log %q",
			time.Since(w.start), s.Sequences(), s.Connects, s.Disconnects, seqs, connects, disconnects, s.Log)
	}
}

// answers returns what the replay socket got: sequences, and whether an end marker
// came.
func (w *world) answers(frames int) (seqs []uint64, end bool) {
	w.t.Helper()
	synctest.Wait()
	for _, m := range w.replay.Seen().Messages {
		if len(m) != frames {
			w.t.Fatalf("reply of %d frames, want %d", len(m), frames)
		}
		if len(m[frames-1]) == 0 {
			end = true
			continue
		}
		seqs = append(seqs, binary.BigEndian.Uint64(m[frames-2]))
	}
	w.replay.Forget()
	return seqs, end
}

func span(from, to uint64) (out []uint64) {
	for i := from; i <= to; i++ {
		out = append(out, i)
	}
	return out
}

func TestDrop(t *testing.T) {
	inWorld(t, memory.Config{}, transport.SubscribeConfig{}, func(w *world) {
		w.net.SetDrop(live, memory.ToIndexer, func(frames [][]byte) bool {
			return binary.BigEndian.Uint64(frames[1])%3 == 0
		})
		w.publish(1, 7)
		w.expect([]uint64{1, 2, 4, 5, 7}, 1, 0)
		w.net.SetDrop(live, memory.ToIndexer, nil)
		w.publish(8, 9)
		w.expect([]uint64{1, 2, 4, 5, 7, 8, 9}, 1, 0)

		w.net.SetDrop(replayAt, memory.ToEngine, func(frames [][]byte) bool {
			return binary.BigEndian.Uint64(frames[1]) == 1
		})
		w.request(1) // lost
		if seqs, end := w.answers(2); len(seqs) > 0 || end {
			t.Errorf("a lost request was answered: %v", seqs)
		}
		w.request(8)
		if seqs, end := w.answers(2); !slices.Equal(seqs, []uint64{8, 9}) || !end {
			t.Errorf("got %v, end %v", seqs, end)
		}
	})
}

func TestDelay(t *testing.T) {
	inWorld(t, memory.Config{}, transport.SubscribeConfig{}, func(w *world) {
		w.net.SetDelay(live, memory.ToIndexer, time.Second)
		w.publish(1, 2)
		time.Sleep(500 * time.Millisecond)
		w.net.SetDelay(live, memory.ToIndexer, 0)
		w.publish(3, 3) // not before the others
		time.Sleep(500*time.Millisecond - 1)
		w.expect(nil, 1, 0)
		time.Sleep(time.Nanosecond)
		w.expect(span(1, 3), 1, 0)

		w.net.SetDelay(replayAt, memory.ToEngine, 2*time.Second)
		w.net.SetDelay(replayAt, memory.ToIndexer, 3*time.Second)
		w.request(0)
		time.Sleep(5*time.Second - 1)
		if seqs, end := w.answers(2); len(seqs) > 0 || end {
			t.Errorf("an answer came too early: %v", seqs)
		}
		time.Sleep(time.Nanosecond)
		if seqs, end := w.answers(2); !slices.Equal(seqs, span(1, 3)) || !end {
			t.Errorf("got %v, end %v", seqs, end)
		}
	})
}

func TestDisconnect(t *testing.T) {
	inWorld(t, memory.Config{}, transport.SubscribeConfig{}, func(w *world) {
		w.publish(1, 2)
		w.expect(span(1, 2), 1, 0)
		w.net.SetDelay(live, memory.ToIndexer, time.Millisecond)
		w.publish(3, 3) // is on its way
		w.net.Disconnect(live)
		w.expect(span(1, 2), 1, 1)
		w.publish(4, 4) // nobody is connected
		time.Sleep(100*time.Millisecond - 1)
		w.expect(span(1, 2), 1, 1)
		time.Sleep(time.Nanosecond)
		w.expect(span(1, 2), 2, 1)
		w.publish(5, 5)
		time.Sleep(time.Millisecond)
		w.expect([]uint64{1, 2, 5}, 2, 1)
		if log := w.stream.Seen().Log; log[len(log)-1] != "kv:5:7" || log[len(log)-2] != "+" || log[len(log)-3] != "-" {
			t.Errorf("log %q", log)
		}
		// The other socket of the engine was not touched.
		if s := w.replay.Seen(); s.Connects != 1 || s.Disconnects != 0 {
			t.Errorf("replay: %d connects, %d disconnects", s.Connects, s.Disconnects)
		}
	})
}

func TestCutAndHeal(t *testing.T) {
	inWorld(t, memory.Config{}, transport.SubscribeConfig{}, func(w *world) {
		w.net.Cut(live)
		w.expect(nil, 1, 1)
		w.publish(1, 1)
		time.Sleep(time.Hour)
		w.expect(nil, 1, 1)
		if n := w.net.Connections(live); n != 0 {
			t.Errorf("%d connections through a cut", n)
		}
		w.net.Heal(live)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		w.publish(2, 2)
		w.expect([]uint64{2}, 2, 1)
		w.net.Heal(live) // twice does no harm
		time.Sleep(time.Second)
		w.expect([]uint64{2}, 2, 1)
	})
}

func TestFreeze(t *testing.T) {
	inWorld(t, memory.Config{}, transport.SubscribeConfig{}, func(w *world) {
		w.net.Freeze(live)
		w.publish(1, 3)
		time.Sleep(14 * time.Second)
		w.expect(nil, 1, 0)
		w.net.Heal(live)
		w.expect(span(1, 3), 1, 0)
		time.Sleep(time.Minute) // the time-out of the first freeze is off
		w.expect(span(1, 3), 1, 0)

		w.net.Freeze(live)
		w.publish(4, 4)
		time.Sleep(15*time.Second - 1)
		w.expect(span(1, 3), 1, 0)
		time.Sleep(time.Nanosecond)
		w.expect(span(1, 3), 1, 1)
		time.Sleep(time.Minute)
		w.publish(5, 5)
		w.expect(span(1, 3), 1, 1)
		w.net.Heal(live)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		w.publish(6, 6)
		w.expect([]uint64{1, 2, 3, 6}, 2, 1)
	})
}

func TestReplayFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault  memory.ReplayFault
		frames int
		want   []uint64
		end    bool
	}{
		"healthy":           {memory.ReplayFault{}, 2, span(3, 20), true},
		"hangs":             {memory.ReplayFault{Hang: true}, 2, nil, false},
		"stops mid-way":     {memory.ReplayFault{StopAfter: 4}, 2, span(3, 6), false},
		"starts late":       {memory.ReplayFault{StartAt: 9}, 2, span(9, 20), true},
		"other shape":       {memory.ReplayFault{OtherShape: true}, 3, span(3, 20), true},
		"no end":            {memory.ReplayFault{NoEnd: true}, 2, span(3, 20), false},
		"drops above marks": {memory.ReplayFault{HighWater: 5}, 2, span(3, 7), false},
		"holes": {memory.ReplayFault{Skip: func(seq uint64) bool { return seq%2 == 0 }}, 2,
			[]uint64{3, 5, 7, 9, 11, 13, 15, 17, 19}, true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, memory.Config{}, transport.SubscribeConfig{}, func(w *world) {
				for seq := uint64(1); seq <= 20; seq++ {
					if err := w.engine.Record("kv", seq, []byte("x")); err != nil {
						t.Fatal(err)
					}
				}
				w.net.SetReplayFault(replayAt, c.fault)
				// The loop is held while the answer comes, as the marks need it.
				w.on(func() {
					if err := w.dealer.Request(3); err != nil {
						t.Error(err)
					}
				})
				seqs, end := w.answers(c.frames)
				if !slices.Equal(seqs, c.want) || end != c.end {
					t.Errorf("got %v and end %v, want %v and %v", seqs, end, c.want, c.end)
				}
				w.net.SetReplayFault(replayAt, memory.ReplayFault{})
				w.request(19)
				if seqs, end := w.answers(2); !slices.Equal(seqs, span(19, 20)) || !end {
					t.Errorf("after the fault: %v, end %v", seqs, end)
				}
			})
		})
	}
}

// TestHighWater: a receiver that is held up keeps what fits below both marks, loses
// what comes then, and goes on with the next.
func TestHighWater(t *testing.T) {
	inWorld(t, memory.Config{}, transport.SubscribeConfig{HighWater: 15}, func(w *world) {
		hold, held := make(chan struct{}), make(chan struct{})
		w.loop.Post(func() { close(held); <-hold })
		<-held
		w.publish(1, 100) // marks of 15 and 10
		close(hold)
		w.expect(span(1, 25), 1, 0)
		w.publish(101, 101)
		w.expect(append(span(1, 25), 101), 1, 0)
	})
}

func TestSubscribeDelay(t *testing.T) {
	inWorld(t, memory.Config{SubscribeDelay: time.Millisecond}, transport.SubscribeConfig{}, func(w *world) {
		w.publish(1, 1)
		w.expect(nil, 1, 0)
		time.Sleep(time.Millisecond)
		w.publish(2, 2)
		w.expect([]uint64{2}, 1, 0)
	})
}

// keeper keeps a frame beyond its time.
type keeper struct{ kept []byte }

func (*keeper) OnConnect()                  {}
func (*keeper) OnDisconnect()               {}
func (k *keeper) OnMessage(frames [][]byte) { k.kept = frames[2] }

func TestFramesAreSpoiled(t *testing.T) {
	inWorld(t, memory.Config{}, transport.SubscribeConfig{}, func(w *world) {
		k := &keeper{}
		w.on(func() {
			if _, err := w.loop.Subscribe(transport.SubscribeConfig{Endpoint: live}, k); err != nil {
				t.Error(err)
			}
		})
		payload := []byte("payload")
		if err := w.engine.Publish("", 1, payload); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if bytes.Equal(k.kept, payload) || len(k.kept) != len(payload) {
			t.Errorf("a kept frame still reads %q", k.kept)
		}
		if string(payload) != "payload" {
			t.Errorf("the sender's payload reads %q", payload)
		}
		w.expect([]uint64{1}, 1, 0) // and so did other receivers get it
	})
}

// TestGoodOrder: a publisher that closes sends what is on its way, then the
// connection ends, and the next life's messages come behind that.
func TestGoodOrder(t *testing.T) {
	inWorld(t, memory.Config{}, transport.SubscribeConfig{}, func(w *world) {
		w.net.SetDelay(live, memory.ToIndexer, time.Second)
		w.publish(1, 3)
		if err := w.engine.Close(); err != nil {
			t.Fatal(err)
		}
		w.newEngine()
		w.publish(4, 4) // the subscription is not here yet
		time.Sleep(time.Second)
		w.expect(span(1, 3), 1, 1)
		time.Sleep(100 * time.Millisecond)
		w.expect(span(1, 3), 2, 1)
		w.publish(5, 5)
		time.Sleep(time.Second)
		w.expect([]uint64{1, 2, 3, 5}, 2, 1)
		want := []string{"+", "kv:1:7", "kv:2:7", "kv:3:7", "-", "+", "kv:5:7"}
		if log := w.stream.Seen().Log; !slices.Equal(log, want) {
			t.Errorf("log %q, want %q", log, want)
		}
	})
}

func TestStrangersDoNotConnect(t *testing.T) {
	inWorld(t, memory.Config{}, transport.SubscribeConfig{}, func(w *world) {
		r := transporttest.NewRecorder()
		w.on(func() {
			if _, err := w.loop.Subscribe(transport.SubscribeConfig{Endpoint: replayAt}, r); err != nil {
				t.Error(err)
			}
			if _, err := w.loop.OpenReplay(live, r); err != nil {
				t.Error(err)
			}
		})
		other := memory.New(memory.Config{})
		l := runLoop(w.t, other)
		done := make(chan error, 1)
		l.Post(func() {
			_, err := l.Subscribe(transport.SubscribeConfig{Endpoint: live}, r)
			done <- err
		})
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.publish(1, 1)
		synctest.Wait()
		if s := r.Seen(); s.Connects != 0 || len(s.Messages) != 0 {
			t.Errorf("connected: %+v", s)
		}
	})
}

// TestReconnectStorm breaks connections of many sockets again and again while
// everything publishes; what arrives is in order, and in the end all are back.
func TestReconnectStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memory.New(memory.Config{})
		p, err := n.NewPublisher(transport.PublisherConfig{Endpoint: live})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		var rs []*transporttest.Recorder
		for range 4 {
			l := runLoop(t, n)
			for range 10 {
				r := transporttest.NewRecorder()
				rs = append(rs, r)
				l.Post(func() {
					if _, err := l.Subscribe(transport.SubscribeConfig{Endpoint: live}, r); err != nil {
						t.Error(err)
					}
				})
			}
		}
		synctest.Wait()
		for seq := uint64(1); seq <= 1000; seq++ {
			if seq%100 == 0 {
				n.Disconnect(live)
			}
			if err := p.Publish("", seq, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(time.Second)
		if err := p.Publish("", 1001, nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i, r := range rs {
			s := r.Seen()
			seqs := s.Sequences()
			if !slices.IsSorted(seqs) || len(seqs) == 0 || seqs[len(seqs)-1] != 1001 {
				t.Errorf("socket %d: %v", i, seqs)
			}
			if s.Connects != 11 || s.Disconnects != 10 {
				t.Errorf("socket %d: %d connects, %d disconnects", i, s.Connects, s.Disconnects)
			}
			if len(seqs) < 700 || len(seqs) > 900 {
				t.Errorf("socket %d got %d of 1001 messages; each of 10 breaks costs 20", i, len(seqs))
			}
		}
	})
}
