package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/transport/zmq"
)

func loopback(t testing.TB) *zmq.Network {
	t.Helper()
	net, err := zmq.New(zmq.Config{IOThreads: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := net.Close(); err != nil {
			t.Error(err)
		}
	})
	return net
}

// TestOverSockets: the same judge over real sockets, with a restart of each side.
func TestOverSockets(t *testing.T) {
	net := loopback(t)
	j := newJudge(t)
	var boots uint64
	endpoints := map[string]string{}
	nodes := make([]*testNode, 3)
	start := func(i int, bind string) {
		boots++
		name := string(rune('a' + i))
		cfg := testConfig(name, boots, bind)
		cfg.Window, cfg.Retention, cfg.MaxPayload = 200_000, 20<<20, 1<<20
		nodes[i] = startNode(j, net, cfg, nil)
		endpoint, err := nodes[i].Listen()
		if err != nil {
			t.Fatal(err)
		}
		endpoints[name] = endpoint
		nodes[i].Handle("echo", func(_ context.Context, peer string, req []byte) ([]byte, error) {
			return fmt.Appendf(nil, "%s:%s", peer, req), nil
		})
	}
	for i := range nodes {
		start(i, "tcp://127.0.0.1:*")
	}
	defer func() {
		for _, n := range nodes {
			n.stop()
		}
	}()
	connect := func() {
		for _, n := range nodes {
			if err := n.SetPeers(endpoints); err != nil {
				t.Fatal(err)
			}
		}
	}
	burst := func(sessions map[[2]string]Session) map[[2]string]Session {
		next := map[[2]string]Session{}
		for _, a := range nodes {
			for _, b := range nodes {
				if a != b {
					next[[2]string{a.name, b.name}] = a.session(b.name, sessions[[2]string{a.name, b.name}])
				}
			}
		}
		for i := range 300 {
			for _, a := range nodes {
				for _, b := range nodes {
					if a == b {
						continue
					}
					if err := a.send(next[[2]string{a.name, b.name}], i*20); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if err := awaitQuiet(nodes, 20*time.Second); err != nil {
			t.Fatal(err)
		}
		return next
	}
	connect()
	sessions := burst(nil)
	for i := range nodes {
		nodes[i].stop()
		start(i, endpoints[nodes[i].name]) // the same address at once
		connect()
		for pair := range sessions {
			if pair[0] != nodes[i].name && pair[1] != nodes[i].name {
				delete(sessions, pair) // goes on
			}
		}
		sessions = burst(sessions)
		for _, a := range nodes {
			for _, b := range nodes {
				if a == b {
					continue
				}
				got, err := a.Call(t.Context(), b.name, "echo", []byte("x"))
				if err != nil || string(got) != a.name+":x" {
					t.Errorf("call of %s from %s: %q, %v", b.name, a.name, got, err)
				}
			}
		}
	}
	if _, err := nodes[0].Call(t.Context(), "b", "nothing", nil); !errors.Is(err, ErrMethod) {
		t.Errorf("unknown method: %v", err)
	}
	if bad := j.failures(); bad != nil {
		t.Error(lines(bad))
	}
	if j.mu.total.frames != 4*6*300 {
		t.Errorf("%d frames were delivered, want %d", j.mu.total.frames, 4*6*300)
	}
}

// cpu is the CPU time of the process.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchUser acknowledges what it gets and counts what is acknowledged.
type benchUser struct {
	hub   *Hub
	up    chan Session
	acked chan uint64
}

func (u *benchUser) OnSession(Session)                           {}
func (u *benchUser) OnFrame(s Session, n uint64, payload []byte) { u.hub.Ack(s, n) }
func (u *benchUser) OnSilence(Session)                           {}
func (u *benchUser) OnResume(Session)                            {}
func (u *benchUser) OnLapse(Session, bool)                       {}
func (u *benchUser) OnPeer(s Session, up bool) {
	if up {
		u.up <- s
	}
}
func (u *benchUser) OnAck(_ Session, n uint64) {
	select {
	case <-u.acked:
	default:
	}
	u.acked <- n
}

// benchPair are two hubs on real sockets of the loopback.
func benchPair(b *testing.B) (from, to *benchUser, s Session) {
	net := loopback(b)
	users := make([]*benchUser, 2)
	endpoints := map[string]string{}
	for i, name := range []string{"a", "b"} {
		u := &benchUser{up: make(chan Session, 100), acked: make(chan uint64, 1)}
		cfg := Config{Name: name, Cluster: "bench", Boot: 1, Bind: "tcp://127.0.0.1:*", Logger: slog.New(slog.DiscardHandler)}
		hub, err := New(cfg, net, u)
		if err != nil {
			b.Fatal(err)
		}
		u.hub, users[i] = hub, u
		if endpoints[name], err = hub.Listen(); err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- hub.Run(ctx) }()
		b.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				b.Error(err)
			}
		})
	}
	for _, u := range users {
		if err := u.hub.SetPeers(endpoints); err != nil {
			b.Fatal(err)
		}
	}
	return users[0], users[1], <-users[0].up
}

// BenchmarkFrames sends over real sockets of the loopback, both ends in this
// process. cpu-us/frame and cpu-ms/MiB are the CPU time of all threads of both ends.
func BenchmarkFrames(b *testing.B) {
	for _, size := range []int{100, 4 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size, "B"), func(b *testing.B) {
			from, _, s := benchPair(b)
			payload := make([]byte, size)
			ahead := uint64(32<<20) / uint64(size+retainedOverhead)
			var acked uint64
			b.SetBytes(int64(size))
			b.ResetTimer()
			start, used := time.Now(), cpu()
			for i := range b.N {
				for uint64(i)-acked >= ahead {
					acked = <-from.acked
				}
				if _, err := from.hub.Send(s, payload); err != nil {
					b.Fatal(err)
				}
			}
			for acked < uint64(b.N) {
				acked = <-from.acked
			}
			wall, spent := time.Since(start), cpu()-used
			b.StopTimer()
			st := from.hub.PeerStats()["b"]
			if st.Resent > 0 || st.SessionsOut != 1 {
				b.Errorf("not a quiet run: %+v", st)
			}
			messages := float64(st.MessagesOut)
			// ZMTP has 2 bytes for a message below 256 bytes and 9 for others.
			overhead := (messages*9 + float64(st.WireOut-st.BytesOut)) / float64(b.N)
			b.ReportMetric(float64(b.N)/wall.Seconds(), "frames/s")
			b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "cpu-us/frame")
			b.ReportMetric(spent.Seconds()*1000/(float64(b.N)*float64(size)/(1<<20)), "cpu-ms/MiB")
			b.ReportMetric(overhead, "overhead-B/frame")
			b.ReportMetric(float64(b.N)/messages, "frames/message")
		})
	}
}

// BenchmarkCall is calls of both sizes of a read, both ends in this process: one at a
// time, where every step wakes a thread, and many, where they share their wakeups.
func BenchmarkCall(b *testing.B) {
	for _, callers := range []int{1, 32} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			from, to, _ := benchPair(b)
			to.hub.Handle("echo", func(_ context.Context, _ string, req []byte) ([]byte, error) { return req[:256], nil })
			req := make([]byte, 4096)
			used := cpu()
			b.SetParallelism(max(1, callers/runtime.GOMAXPROCS(0)))
			b.ResetTimer()
			one := func(next func() bool) {
				for next() {
					ctx, cancel := context.WithTimeout(b.Context(), time.Second)
					if _, err := from.hub.Call(ctx, "b", "echo", req); err != nil {
						b.Error(err)
					}
					cancel()
				}
			}
			if callers == 1 {
				i := 0
				one(func() bool { i++; return i <= b.N })
			} else {
				b.RunParallel(func(pb *testing.PB) { one(pb.Next) })
			}
			b.ReportMetric(float64((cpu()-used).Microseconds())/float64(b.N), "cpu-us/call")
		})
	}
}
