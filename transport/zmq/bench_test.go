package zmq_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

// fleetEnv makes the test binary a fleet of publishers instead: "sockets size".
// They must be another process, so that the CPU time of this one is that of
// receiving alone.
const fleetEnv = "KVCLUSTER_ZMQ_TEST_FLEET"

// runFleet prints the endpoints and then publishes as many batches, one publisher
// after the other, as each line of its input says.
func runFleet(spec string) error {
	var sockets, size int
	if _, err := fmt.Sscan(spec, &sockets, &size); err != nil {
		return fmt.Errorf("%s=%q: %w", fleetEnv, spec, err)
	}
	n, err := zmq.New(zmq.Config{})
	if err != nil {
		return err
	}
	ps := make([]transport.Publisher, sockets)
	for i := range ps {
		// A small buffer: what is kept for replay is not measured.
		if ps[i], err = n.NewPublisher(transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*", Buffer: 1}); err != nil {
			return err
		}
		fmt.Print(ps[i].Endpoint(), " ")
	}
	fmt.Println()
	payload := make([]byte, size)
	in := bufio.NewScanner(os.Stdin)
	next, seq := 0, uint64(0)
	for in.Scan() {
		var count int
		if _, err := fmt.Sscan(in.Text(), &count); err != nil {
			return err
		}
		for range count {
			if err := ps[next].Publish("kv-events", seq, payload); err != nil {
				return err
			}
			if next++; next == sockets {
				next, seq = 0, seq+1
			}
		}
	}
	for _, p := range ps {
		if err := p.Close(); err != nil {
			return err
		}
	}
	return n.Close()
}

type benchHandler struct {
	received *atomic.Int64
	first    bool
	standing *atomic.Int64
	target   *atomic.Int64
	reached  chan struct{}
}

func (*benchHandler) OnConnect()    {}
func (*benchHandler) OnDisconnect() {}
func (h *benchHandler) OnMessage(frames [][]byte) {
	if !h.first {
		h.first = true
		h.standing.Add(1)
	}
	if n := h.received.Add(1); n == h.target.Load() {
		h.reached <- struct{}{}
	}
}

func threadCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func processCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkReceive measures receiving from publishers in another process: the CPU
// time of the whole receiving process (I/O threads included) and of the loop alone.
func BenchmarkReceive(b *testing.B) {
	for _, sockets := range []int{1, 500} {
		for _, size := range []int{256, 4096} {
			b.Run(fmt.Sprintf("sockets=%d/bytes=%d", sockets, size), func(b *testing.B) {
				benchmarkReceive(b, sockets, size)
			})
		}
	}
}

// fleet is a running fleet of publishers.
type fleet struct {
	b   *testing.B
	cmd *exec.Cmd
	in  io.WriteCloser
}

func startFleet(b *testing.B, sockets, size int) (*fleet, []string) {
	b.Helper()
	f := &fleet{b: b, cmd: exec.Command(os.Args[0])}
	f.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", fleetEnv, sockets, size))
	f.cmd.Stderr = os.Stderr
	var err error
	if f.in, err = f.cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return f, strings.Fields(line)
}

// publish has it send so many batches in all.
func (f *fleet) publish(n int) {
	if _, err := fmt.Fprintln(f.in, n); err != nil {
		f.b.Fatal(err)
	}
}

func (f *fleet) stop() {
	f.in.Close()
	if err := f.cmd.Wait(); err != nil {
		f.b.Errorf("fleet: %v", err)
	}
}

func runLoop(b *testing.B, net *zmq.Network) (transport.Loop, func()) {
	b.Helper()
	l, err := net.NewLoop("bench")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	return l, func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
}

func onLoop(l transport.Loop, fn func()) {
	c := make(chan struct{})
	l.Post(func() { fn(); close(c) })
	<-c
}

func benchmarkReceive(b *testing.B, sockets, size int) {
	fleet, endpoints := startFleet(b, sockets, size)
	defer fleet.stop()
	net := newNetwork(b, zmq.Config{})
	l, stop := runLoop(b, net)
	defer stop()

	var received, standing, target atomic.Int64
	reached := make(chan struct{}, 1)
	for _, e := range endpoints {
		onLoop(l, func() {
			h := &benchHandler{received: &received, standing: &standing, target: &target, reached: reached}
			if _, err := l.Subscribe(transport.SubscribeConfig{Endpoint: e}, h); err != nil {
				b.Error(err)
			}
		})
	}
	for standing.Load() < int64(sockets) {
		fleet.publish(sockets)
		onLoop(l, func() {})
	}
	settle := func() { // until what was sent while connecting is in
		for last := int64(-1); last != received.Load(); {
			last = received.Load()
			time.Sleep(50 * time.Millisecond)
		}
	}
	settle()

	// Half of a window is sent while the other half is being received.
	half := min(max(b.N/4, 1), 20_000)
	var loopStart, loopEnd time.Duration
	onLoop(l, func() { loopStart = threadCPU() })
	start := received.Load()
	wakeups := l.Stats().Wakeups
	b.ReportAllocs()
	b.ResetTimer()
	cpu := processCPU()
	sent := 0
	for sent < b.N {
		n := min(half, b.N-sent)
		if sent > 0 {
			target.Store(start + int64(sent) - int64(half)/2)
			if received.Load() < target.Load() {
				<-reached
			}
			select { // a late one of the same target
			case <-reached:
			default:
			}
		}
		fleet.publish(n)
		sent += n
	}
	target.Store(start + int64(sent))
	deadline := time.After(30 * time.Second)
	for received.Load() < start+int64(sent) {
		select {
		case <-reached:
		case <-deadline:
			b.Fatalf("%d of %d received", received.Load()-start, sent)
		case <-time.After(time.Millisecond):
		}
	}
	cpu = processCPU() - cpu
	b.StopTimer()
	onLoop(l, func() { loopEnd = threadCPU() })
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(float64(cpu)/float64(b.N), "cpu-ns/msg")
	b.ReportMetric(float64(loopEnd-loopStart)/float64(b.N), "loop-ns/msg")
	b.ReportMetric(float64(l.Stats().Wakeups-wakeups)/float64(b.N), "wakeups/msg")
}

// BenchmarkFootprint measures what a standing subscription holds, its monitor
// included: descriptors, resident memory, and threads (of all 2,000 together).
func BenchmarkFootprint(b *testing.B) {
	const subscriptions = 2000
	for b.Loop() {
		fleet, endpoints := startFleet(b, 4, 1)
		net := newNetwork(b, zmq.Config{})
		l, stop := runLoop(b, net)
		var connected atomic.Int64
		h := connectCounter{n: &connected}
		fds, rss, began := openFiles(b), residentBytes(b), processCPU()
		for i := range subscriptions {
			onLoop(l, func() {
				if _, err := l.Subscribe(transport.SubscribeConfig{Endpoint: endpoints[i%len(endpoints)]}, h); err != nil {
					b.Error(err)
				}
			})
		}
		for deadline := time.Now().Add(30 * time.Second); connected.Load() < subscriptions; {
			if time.Now().After(deadline) {
				b.Fatalf("%d of %d connected", connected.Load(), subscriptions)
			}
			onLoop(l, func() {})
		}
		b.ReportMetric(float64(processCPU()-began)/subscriptions/1000, "cpu-us/sub")
		b.ReportMetric(float64(openFiles(b)-fds)/subscriptions, "fds/sub")
		b.ReportMetric(float64(residentBytes(b)-rss)/subscriptions/1024, "KiB/sub")
		b.ReportMetric(float64(threads(b)), "threads")
		stop()
		fleet.stop()
	}
}

type connectCounter struct{ n *atomic.Int64 }

func (c connectCounter) OnConnect()       { c.n.Add(1) }
func (connectCounter) OnDisconnect()      {}
func (connectCounter) OnMessage([][]byte) {}

func openFiles(t testing.TB) int { return entries(t, "/proc/self/fd") }
func threads(t testing.TB) int   { return entries(t, "/proc/self/task") }

func entries(t testing.TB, dir string) int {
	e, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

func residentBytes(t testing.TB) int {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * os.Getpagesize()
}
