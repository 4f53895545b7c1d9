package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport"
)

// tooSlow is when something has waited for something else. Undisturbed, an event can
// be seen after milliseconds; the rest is for machines that do other things too.
const tooSlow = 2 * time.Second

// enough batches and queries say something.
const enough = 5

// Promise 8: nothing waits for a slow one. Beside a stream that stalls, replay peers
// that hang, names that do not resolve, a flood and clients that neither send nor read,
// another stream's events and queries are as prompt as ever.
func TestPromise8NothingWaits(t *testing.T) {
	nothingWaits(t, nil)
	var began atomic.Int64
	mustFail(t, "an ingest loop waits for one slot's lane", breakIndex(broken{write: func(w indexer.Writer, f indexer.Frame) error {
		now := time.Now().UnixNano()
		began.CompareAndSwap(0, now)
		// The prompt engine registers first. The flood that waits need not at the end.
		if f.Header().Slot != 0 && now-began.Load() < int64(20*time.Second) {
			time.Sleep(2 * tooSlow)
		}
		return w.Write(f)
	}}), nothingWaits)
	var mu sync.Mutex
	mustFail(t, "queries wait for a long one", breakIndex(broken{match: func(r indexer.Reader, q indexer.Query, out *indexer.Scores) {
		mu.Lock()
		defer mu.Unlock()
		if len(q.Locals) > 1000 {
			time.Sleep(2 * tooSlow)
		}
		r.Match(q, out)
	}}), nothingWaits)
}

func nothingWaits(tb testing.TB, edit func(*node.Config)) {
	const name = "slow"
	url := startNode(tb, func(c *node.Config) {
		c.Ingest.Loops = 1 // all streams share one thread
		c.Ingest.ReplayTimeout = time.Minute
		if edit != nil {
			edit(c)
		}
	})
	net := newSockets(tb)
	prompt := newHandDriven(tb, net, url, name, 71, nil)
	p := makePrompt(1, 0, 12, 6)
	prompt.store(p, 0, 12, indexer.Device)
	prompt.settle(p)

	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	deaf := listenDeaf(tb)
	for i := range 5 { // streams that stall, dead ports, a name that is none
		for k, endpoint := range []string{"tcp://" + deaf, "tcp://127.0.0.1:1", fmt.Sprintf("tcp://nowhere%d.invalid:5557", i)} {
			body := map[string]any{"instance_id": 1000 + 10*i + k, "endpoint": endpoint, "replay_endpoint": endpoint, "model_name": name, "block_size": blockTokens}
			if status, ans := call(tb, "POST", url+"/register", body, nil); status != 201 {
				tb.Fatalf("register %s: HTTP %d %s", endpoint, status, ans)
			}
		}
	}
	hung := newHung(tb, net, url, name, 72, deaf)
	flood := newHandDriven(tb, net, url, name, 73, nil)
	wg.Go(func() {
		long := makePrompt(500, 0, 2000, 0)
		all := make([]int, 2000)
		for i := range all {
			all[i] = i
		}
		for ctx.Err() == nil {
			flood.store(long, 0, 2000, indexer.Device)
			flood.remove(long, indexer.Device, all[1000:]...)
			flood.send()
			hung.store(long, 0, 10, indexer.Device)
			hung.send()
			hung.seq++ // gap after gap, and nobody to ask
		}
	})
	for range 20 {
		wg.Go(func() { trickle(ctx, tb, url) })
		wg.Go(func() { refuseToRead(ctx, tb, url) })
	}
	huge := makePrompt(600, 0, 8000, 0)
	wg.Go(func() {
		for ctx.Err() == nil {
			ask(tb, url, name, huge)
		}
	})

	var events, queries latencies
	// Three seconds, and longer where a busy machine gets through less of it all.
	for begin := time.Now(); (time.Since(begin) < 3*time.Second || events.n < enough && time.Since(begin) < 30*time.Second) && !tb.Failed(); {
		start := time.Now()
		missing := prompt.mark(p)
		prompt.send()
		for missing() != "" {
			if time.Since(start) > tooSlow {
				tb.Errorf("a batch of a healthy stream is not visible after %v", tooSlow)
				break
			}
		}
		events.add(time.Since(start))
		start = time.Now()
		if n := prompt.score(p); n != 12 {
			tb.Errorf("the healthy stream scores %d blocks, want 12", n)
		}
		queries.add(time.Since(start))
	}
	tb.Logf("beside all that is slow: batch to visible %v, query %v", &events, &queries)
	if events.worst > tooSlow || queries.worst > tooSlow {
		tb.Errorf("a batch took %v to be visible, a query %v; more than %v means that something waits", events.worst, queries.worst, tooSlow)
	}
	if !tb.Failed() && (events.n < enough || queries.n < enough) {
		tb.Errorf("%d batches and %d queries in 30 s", events.n, queries.n)
	}
}

type latencies struct {
	n          int
	sum, worst time.Duration
}

func (l *latencies) add(d time.Duration) {
	l.n++
	l.sum += d
	l.worst = max(l.worst, d)
}

func (l *latencies) String() string {
	return fmt.Sprintf("%v on average, %v at worst of %d", (l.sum / time.Duration(max(1, l.n))).Round(time.Microsecond), l.worst.Round(time.Microsecond), l.n)
}

// listenDeaf accepts connections and never says a word.
func listenDeaf(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		var open []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			open = append(open, c)
		}
		for _, c := range open {
			c.Close()
		}
	})
	tb.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// newHung is an engine whose replay socket accepts and never answers.
func newHung(tb testing.TB, network transport.Network, url, model string, id int, deaf string) *handDriven {
	tb.Helper()
	e := &handDriven{tb: tb, net: network, id: fmt.Sprint(id), url: url, model: model, noReplay: true}
	e.open("tcp://127.0.0.1:0", "")
	tb.Cleanup(e.close)
	body := map[string]any{"instance_id": id, "endpoint": e.pub.Endpoint(), "replay_endpoint": "tcp://" + deaf, "model_name": model, "block_size": blockTokens}
	if status, ans := call(tb, "POST", url+"/register", body, nil); status != 201 {
		tb.Fatalf("register: HTTP %d %s", status, ans)
	}
	return e
}

// trickle sends a query a byte at a time.
func trickle(ctx context.Context, tb testing.TB, url string) {
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		tb.Errorf("slow client: %v", err)
		return
	}
	defer c.Close()
	fmt.Fprintf(c, "POST /query HTTP/1.1\r\nHost: slow\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n")
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
		if _, err := io.WriteString(c, "{"); err != nil {
			return // given up by the node: also fine
		}
	}
}

// refuseToRead asks for dumps and reads none of them.
func refuseToRead(ctx context.Context, tb testing.TB, url string) {
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		tb.Errorf("slow client: %v", err)
		return
	}
	defer c.Close()
	if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		tb.Errorf("slow client: %v", err)
	}
	fmt.Fprintf(c, "GET /dump HTTP/1.1\r\nHost: slow\r\n\r\n")
	<-ctx.Done()
}
