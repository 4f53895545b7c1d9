package e2e

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/indexer"
)

// nodeStatus is what /status says about the index.
type nodeStatus struct {
	Index struct {
		Held     map[string]uint64 `json:"held_blocks"`
		Distinct uint64            `json:"distinct_blocks"`
		Faults   uint64            `json:"faults"`
		Bytes    map[string]uint64 `json:"bytes"`
		Reserved uint64            `json:"reserved_bytes"`
		Limbo    uint64            `json:"limbo_bytes"`
	} `json:"index"`
}

// statusAt is what one node says of its own index.
func statusAt(tb testing.TB, url string) (st nodeStatus) {
	tb.Helper()
	if code, body := call(tb, "GET", url+"/status", nil, &st); code != 200 {
		tb.Fatalf("status: HTTP %d %s", code, body)
	}
	return st
}

// statusOf adds up the nodes of a cluster. Blocks count once, however many replicas hold
// them; while these do not agree, or not all partitions have all of them, it is more or less.
func statusOf(tb testing.TB, url string) (sum nodeStatus) {
	tb.Helper()
	sum.Index.Held, sum.Index.Bytes = map[string]uint64{}, map[string]uint64{}
	for _, at := range nodesOf(url) {
		st := statusAt(tb, at)
		for tier, n := range st.Index.Held {
			sum.Index.Held[tier] += n
		}
		for purpose, n := range st.Index.Bytes {
			sum.Index.Bytes[purpose] += n
		}
		sum.Index.Distinct += st.Index.Distinct
		sum.Index.Faults += st.Index.Faults
		sum.Index.Reserved += st.Index.Reserved
		sum.Index.Limbo += st.Index.Limbo
	}
	n := uint64(replicasOf(url))
	for tier := range sum.Index.Held {
		sum.Index.Held[tier] = (sum.Index.Held[tier] + n - 1) / n
	}
	sum.Index.Distinct = (sum.Index.Distinct + n - 1) / n
	return sum
}

// live is what the index uses now.
func (s nodeStatus) live() (n uint64) {
	for purpose, b := range s.Index.Bytes {
		if purpose != "limbo" {
			n += b
		}
	}
	return n
}

// used is what counts against a memory limit.
func (s nodeStatus) used() uint64 { return s.Index.Reserved - min(s.Index.Reserved, s.Index.Limbo) }

// resident is the resident memory of this process, the node included.
func resident(tb testing.TB) uint64 {
	tb.Helper()
	debug.FreeOSMemory()
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var kb uint64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	tb.Fatal("no VmRSS in /proc/self/status")
	return 0
}

// Promise 7: memory follows the blocks that are live, and comes back after a churn.
func TestPromise7MemoryFollowsLiveBlocks(t *testing.T) {
	churn(t, nil)
	mustFail(t, "what is stored leaves a copy behind", breakIndex(broken{write: hoard()}), churn)
}

// hoard writes every prompt once more, for a slot that nobody ever clears.
func hoard() func(indexer.Writer, indexer.Frame) error {
	var ghost atomic.Uint32
	ghost.Store(1 << 14)
	return func(w indexer.Writer, f indexer.Frame) error {
		if err := w.Write(f); err != nil {
			return err
		}
		copied := append(indexer.Frame(nil), filter(f, func(op *indexer.Op) bool {
			return op.Kind == indexer.OpStore && op.Start == 0 && op.Parent.Kind == indexer.ParentRoot
		})...)
		if copied.NumOps() == 0 {
			return nil
		}
		copied[2] = copied[2]&^0xffffffff | uint64(ghost.Add(1))
		return w.Write(copied)
	}
}

func churn(tb testing.TB, edit func(*node.Config)) {
	const prompts, blocks, rounds, warm = 48, 512, 24, 4
	url := startNode(tb, func(c *node.Config) {
		c.Index.Lanes = 1
		if edit != nil {
			edit(c)
		}
	})
	nodes := uint64(len(nodesOf(url)))
	e := newHandDriven(tb, newSockets(tb), url, "churn", 51, nil)
	empty := statusOf(tb, url)
	var alive [][]uint32
	next := 0
	grow := func() {
		p := makePrompt(100+next/100, next%100, blocks, 0)
		next++
		e.store(p, 0, blocks, indexer.Device)
		alive = append(alive, p)
	}
	for range prompts {
		grow()
	}
	e.settle(alive...)
	all := make([]int, blocks)
	for i := range all {
		all[i] = i
	}
	var before nodeStatus
	var residentBefore uint64
	for round := range rounds {
		for range prompts / 3 {
			old := alive[0]
			alive = alive[1:]
			e.remove(old, indexer.Device, all[blocks/4:blocks/2]...) // the middle first
			e.remove(old, indexer.Device, append(append([]int(nil), all[blocks/2:]...), all[:blocks/4]...)...)
			grow()
		}
		e.settle(alive...)
		if round == warm {
			before, residentBefore = statusOf(tb, url), resident(tb)
		}
	}
	// The markers of settle are held too, one block each.
	want := uint64(prompts*blocks + len(e.markers))
	var after nodeStatus
	await(tb, 20*time.Second, func() string {
		after = statusOf(tb, url)
		if got := after.Index.Held["device"]; got != want || after.Index.Distinct != want {
			return fmt.Sprintf("%d blocks held, %d distinct, the engine holds %d", got, after.Index.Distinct, want)
		}
		if after.live() > before.live()*5/4+nodes*64<<10 {
			return fmt.Sprintf("%d bytes for %d blocks, it was %d after %d rounds of the churn", after.live(), want, before.live(), warm)
		}
		if after.Index.Reserved > before.Index.Reserved*3/2+nodes<<20 {
			return fmt.Sprintf("%d bytes reserved for %d blocks, it was %d", after.Index.Reserved, want, before.Index.Reserved)
		}
		return ""
	})
	if now := resident(tb); now > residentBefore+nodes*48<<20 {
		tb.Errorf("resident memory grew from %d to %d MiB in %d rounds with as many live blocks", residentBefore>>20, now>>20, rounds-warm)
	}
	tb.Logf("%d blocks live, %d stored in all: %d bytes live, %d reserved", want, next*blocks, after.live(), after.Index.Reserved)
	// A peak, and then nothing.
	for range 25 * prompts {
		if grow(); len(alive)%100 == 0 {
			e.send()
		}
	}
	e.settle(alive[:prompts]...)
	peak := statusOf(tb, url)
	for i, p := range alive {
		if e.remove(p, indexer.Device, all...); i%100 == 99 {
			e.send()
		}
	}
	e.settle(alive[:prompts]...)
	e.clear()
	e.send()
	// A lane keeps up to 3 MiB to go on with.
	kept := empty.Index.Reserved + peak.Index.Reserved/50 + nodes*3<<20
	if peak.Index.Reserved < 2*kept {
		tb.Errorf("the peak of %d bytes shows nothing: %d may be kept", peak.Index.Reserved, kept)
	}
	await(tb, 20*time.Second, func() string {
		st := statusOf(tb, url)
		if st.Index.Held["device"] != 0 || st.live() > empty.live()+peak.live()/50 || st.Index.Reserved > kept {
			return fmt.Sprintf("nothing is live and the index still has %d blocks, %d bytes live (%d at the peak), %d reserved (%d)",
				st.Index.Held["device"], st.live(), peak.live(), st.Index.Reserved, peak.Index.Reserved)
		}
		tb.Logf("at the peak %d bytes live, %d reserved; with nothing %d and %d", peak.live(), peak.Index.Reserved, st.live(), st.Index.Reserved)
		return ""
	})
}

// Promise 7: a memory limit holds. What is shed for it is not credited, is reported,
// and index and translator agree on what is left.
func TestPromise7MemoryLimit(t *testing.T) {
	limited(t, nil)
	mustFail(t, "there is no limit", func(c *node.Config) { c.Index.MemoryLimit = 0 }, limited)
	mustFail(t, "what is shed stays in the index", breakIndex(broken{write: without(func(_ indexer.Frame, op *indexer.Op) bool {
		return op.Kind == indexer.OpDrop
	})}), limited)
}

func limited(tb testing.TB, edit func(*node.Config)) {
	const limit, blocks = 2 << 20, 128
	url := startNode(tb, func(c *node.Config) {
		c.Index.MemoryLimit = limit
		if edit != nil {
			edit(c)
		}
	})
	// Each of several nodes has the limit, and a part of the blocks, once for each replica.
	prompts := 1200 * len(nodesOf(url)) / replicasOf(url)
	e := newHandDriven(tb, newSockets(tb), url, "limited", 61, nil)
	highest := uint64(0)
	prompt := func(i int) []uint32 { return makePrompt(100+i/100, i%100, blocks, 0) }
	for i := range prompts {
		e.store(prompt(i), 0, blocks, indexer.Device)
		if i%100 == 99 {
			e.send()
			e.awaitBatches()
			for _, at := range nodesOf(url) {
				highest = max(highest, statusAt(tb, at).used())
			}
		}
	}
	await(tb, 10*time.Second, func() string {
		for _, at := range nodesOf(url) {
			if st := statusAt(tb, at); st.used() > limit*5/4 {
				return fmt.Sprintf("%d bytes used at %s, the limit is %d: %+v", st.used(), at, limit, st)
			}
		}
		st, l := statusOf(tb, url), listenerOf(tb, url, e.id)
		if l.Held["device"] == 0 || l.Held["device"] != st.Index.Held["device"] {
			return fmt.Sprintf("the stream holds %d blocks, the index %d", l.Held["device"], st.Index.Held["device"])
		}
		return ""
	})
	shed := metric(tb, url, "kvcluster_stream_rejected_blocks_total", `reason="shed"`)
	left := statusOf(tb, url).Index.Held["device"]
	tb.Logf("limit %d: at most %d used while %d blocks were stored; %d blocks left, %v shed", limit, highest, prompts*blocks, left, shed)
	if uint64(shed)+left < uint64(prompts*blocks) {
		tb.Errorf("%v blocks are reported as shed and %d are left of %d: the rest is not accounted for", shed, left, prompts*blocks)
	}
	// What is credited is there: the leading blocks of all prompts are not more than
	// what is held, and many are not credited at all.
	credited, without := 0, 0
	for i := range prompts {
		n := e.score(prompt(i))
		if credited += n; n == 0 {
			without++
		}
	}
	if uint64(credited) > left || without == 0 {
		tb.Errorf("%d leading blocks are credited (%d prompts without any) and only %d held", credited, without, left)
	}
	// The engine removes everything; what was shed before is gone already.
	all := make([]int, blocks)
	for i := range all {
		all[i] = i
	}
	for i := range prompts {
		e.remove(prompt(i), indexer.Device, all...)
	}
	e.send()
	await(tb, 10*time.Second, func() string {
		st, l := statusOf(tb, url), listenerOf(tb, url, e.id)
		if st.Index.Held["device"] > 0 || l.Held["device"] > 0 {
			return fmt.Sprintf("all removed: the stream holds %d blocks, the index %d", l.Held["device"], st.Index.Held["device"])
		}
		return ""
	})
	// And it goes on as ever.
	fresh := makePrompt(900, 0, blocks, 0)
	e.store(fresh, 0, blocks, indexer.Device)
	e.settle(fresh)
	if n := e.score(fresh); n != blocks {
		tb.Errorf("a prompt stored after the shedding scores %d blocks, want %d", n, blocks)
	}
}
