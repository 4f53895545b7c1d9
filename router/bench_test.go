package router

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// quietSearcher answers every match with the same rows, at no cost: what is left is the
// router's own.
type quietSearcher struct {
	fakeSearcher
	rows []indexer.Row
}

func (s *quietSearcher) Match(_ indexer.Query, out *indexer.Scores) {
	out.Rows, out.Tiers = append(out.Rows[:0], s.rows...), out.Tiers[:0]
}

func (s *quietSearcher) Close() {}

type quietCluster struct {
	*fakeCluster
	view *catalog.View
	rows []indexer.Row
}

func (c *quietCluster) View() *catalog.View { return c.view }
func (c *quietCluster) NewSearcher() Searcher {
	return &quietSearcher{fakeSearcher{f: c.fakeCluster, pin: 1 << 60}, c.rows}
}

// benchRouter returns a router with n workers that all hold the prompt.
func benchRouter(b testing.TB, n int) *Router {
	fake := newFake()
	c := &quietCluster{fakeCluster: fake}
	for i := range n {
		fake.index++
		err := fake.catalog.Register(fake.index, catalog.Registration{
			Instance: strconv.Itoa(i), Group: catalog.GroupKey{Model: "m", RoutingGroup: "default"}, BlockSize: 16, Endpoint: fmt.Sprintf("tcp://h:%d", i),
		})
		if err != nil {
			b.Fatal(err)
		}
		c.rows = append(c.rows, indexer.Row{Slot: indexer.Slot(i), Depth: uint32(1 + i%500)})
	}
	c.view = fake.catalog.View()
	return New(Config{}, c, slog.New(slog.NewTextHandler(io.Discard, nil)))
}

func benchBody(n int) []byte {
	r := rand.New(rand.NewPCG(5, 6))
	text := []byte(`{"model_name": "m", "token_ids": [`)
	for i := range n {
		if i > 0 {
			text = append(text, ", "...)
		}
		text = strconv.AppendUint(text, r.Uint64N(152_000), 10)
	}
	return append(text, "]}"...)
}

// sink is a response writer that keeps nothing.
type sink struct {
	header http.Header
	status int
	bytes  int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(status int)      { s.status = status }
func (s *sink) Write(b []byte) (int, error) { s.bytes += len(b); return len(b), nil }

// rewind is a body that can be read again without an allocation.
type rewind struct {
	data []byte
	pos  int
}

func (r *rewind) Read(p []byte) (int, error) {
	if r.pos == len(r.data) {
		return 0, io.EOF
	}
	n := copy(p, r.data[r.pos:])
	r.pos += n
	return n, nil
}

func (r *rewind) Close() error { return nil }

// once runs one request through the handler.
type once struct {
	handler http.Handler
	req     *http.Request
	body    rewind
	out     sink
}

func newOnce(r *Router, body []byte) *once {
	o := &once{handler: r.Handler(), body: rewind{data: body}, out: sink{header: http.Header{}}}
	o.req = httptest.NewRequest("POST", "/query", nil)
	o.req.Header.Set("Content-Type", "application/json")
	o.req.ContentLength = int64(len(body))
	o.req.Body = &o.body
	return o
}

func (o *once) run(t testing.TB) {
	o.body.pos = 0
	o.handler.ServeHTTP(&o.out, o.req)
	if o.out.status != 200 {
		t.Fatal(o.out.status)
	}
}

func BenchmarkQuery(b *testing.B) {
	for _, tokens := range []int{1000, 8000, 1_000_000} {
		for _, workers := range []int{16, 2048} {
			b.Run(fmt.Sprintf("tokens=%d/workers=%d", tokens, workers), func(b *testing.B) {
				r := benchRouter(b, workers)
				defer r.Close()
				o := newOnce(r, benchBody(tokens))
				o.run(b)
				b.ReportAllocs()
				for b.Loop() {
					o.run(b)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(tokens), "ns/token")
			})
		}
	}
}

// A query allocates a fixed handful of small things, whatever the prompt and the number
// of holders: the pools hold everything that grows.
func TestQueryAllocations(t *testing.T) {
	for _, tokens := range []int{64, 8000} {
		for _, workers := range []int{2, 500} {
			r := benchRouter(t, workers)
			o := newOnce(r, benchBody(tokens))
			o.run(t)
			// The fewest of many runs: under the race detector pools lose things on purpose.
			least := testing.AllocsPerRun(1, func() { o.run(t) })
			for range 60 {
				least = min(least, testing.AllocsPerRun(1, func() { o.run(t) }))
			}
			if least > 24 {
				t.Errorf("%d tokens, %d workers: %.0f allocations", tokens, workers, least)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
