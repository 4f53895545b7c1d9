package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvcluster/kvcluster/chaos/trace"
)

// ErrCluster: nodes did not do what they should: no figure is made of it.
var ErrCluster = errors.New("cluster benchmark")

// ClusterConfig says what MeasureCluster measures. SetDefaults fills in what is zero.
type ClusterConfig struct {
	// Command starts the program of a node: its path, and words before "serve" and "join".
	Command  []string
	Nodes    []int  // sizes to measure; default 1, 2, 4, 8
	Replicas int    // owners of a partition; default 1
	Repeat   int    // repetitions of each size; default 3
	Trace    string // file of requests; empty = generated
	Blocks   int    // stored blocks to aim at; default 2 million
	Workers  int    // mock engines; default 32
	// Rate bounds the blocks stored and removed a second by all engines; default 3 million.
	Rate float64
	// Settle is for how long the layout must not have changed before anything is measured;
	// default 7 s. Until 6 s after a layout change (fanout.Config.Linger) frames go to the
	// replaced owners as well.
	Settle time.Duration
	// NoParts leaves the further, profiled pass of each size out. ProfileDir, if set, gets
	// the profiles of that pass, one of each node.
	NoParts    bool
	ProfileDir string
	Progress   func(string)
}

// SetDefaults fills in what was left at zero.
func (c *ClusterConfig) SetDefaults() {
	if len(c.Nodes) == 0 {
		c.Nodes = []int{1, 2, 4, 8}
	}
	for v, d := range map[*int]int{&c.Replicas: 1, &c.Repeat: 3, &c.Blocks: 2_000_000, &c.Workers: 32} {
		if *v == 0 {
			*v = d
		}
	}
	if c.Rate == 0 {
		c.Rate = 3_000_000
	}
	if c.Settle == 0 {
		c.Settle = 7 * time.Second
	}
}

// Validate names the first value that cannot be used.
func (c *ClusterConfig) Validate() error {
	for _, n := range c.Nodes {
		if n < 1 || n > 64 {
			return fmt.Errorf("%w: %d nodes, want 1 to 64", ErrJob, n)
		}
	}
	switch {
	case c.Replicas < 1 || c.Replicas > 7:
		return fmt.Errorf("%w: %d replicas, want 1 to 7", ErrJob, c.Replicas)
	case c.Repeat < 1:
		return fmt.Errorf("%w: %d repetitions, want at least 1", ErrJob, c.Repeat)
	case c.Blocks < 1 || c.Blocks > 1e9:
		return fmt.Errorf("%w: %d blocks, want 1 to a billion", ErrJob, c.Blocks)
	case c.Workers < 1 || c.Workers > 4096:
		return fmt.Errorf("%w: %d workers, want 1 to 4096", ErrJob, c.Workers)
	case !(c.Rate > 0):
		return fmt.Errorf("%w: rate %g, want above 0", ErrJob, c.Rate)
	}
	return nil
}

// ClusterReport is what MeasureCluster found.
type ClusterReport struct {
	Time      time.Time `json:"time"`
	Host      Host      `json:"host"`
	Trace     string    `json:"trace"`
	Generated bool      `json:"generated"`
	Workers   int       `json:"workers"`
	Replicas  int       `json:"replicas"`
	BlockSize int       `json:"block_size"`
	Rate      float64   `json:"blocks_per_second"`
	Repeat    int       `json:"repeat"`
	// Requests of the trace, and the ids with which they begin. Without splitting of trunks
	// all requests with one first block lie in one partition: their number bounds how even
	// a cluster can be.
	Requests   int `json:"requests"`
	FirstIDs   int `json:"first_ids"`
	LargestIDs int `json:"requests_of_largest_first_id"`
	// What the engines published, equal in all repetitions, and the answers to the queries.
	Batches uint64        `json:"batches"`
	Stored  uint64        `json:"stored_blocks"`
	Removed uint64        `json:"removed_blocks"`
	Held    uint64        `json:"held_blocks"`
	Queries int           `json:"queries"`
	Answers Hex           `json:"answers"`
	Sizes   []ClusterSize `json:"sizes"`
}

// ClusterSize has the figures of one number of nodes; their names are the Figure
// constants.
type ClusterSize struct {
	Nodes   int               `json:"nodes"`
	Figures map[string]Spread `json:"figures"`
	// Ratios are the medians over those of the first size in the report.
	Ratios map[string]float64 `json:"ratios"`
	// Parts are CPU seconds for a million blocks by what they are spent on: the CPU of the
	// write phase as the profiled pass divides it, and the queries. They sum up to
	// FigureTotal's median.
	Parts map[string]float64 `json:"parts,omitempty"`
	// Samples of the profiled pass: 10 ms of CPU each.
	Samples int64    `json:"samples,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// Figures of a size, of all nodes together.
const (
	FigureTotal     = "cpu.total"        // CPU seconds for a million blocks, stored and removed ones, queries included
	FigureWrite     = "cpu.write"        // the same of the write phase: from the first batch until all is applied everywhere
	FigureWriteNet  = "cpu.write.net"    // without what the idle cluster uses in the same time
	FigureIO        = "cpu.io"           // of the write phase: libzmq's I/O threads, streams and links
	FigureQuery     = "cpu.query"        // CPU microseconds of a query
	FigureIdle      = "cpu.idle"         // CPU milliseconds a second, before anything happens
	FigureFrame     = "wire.frame"       // bytes of frames for each stored block that went to another node
	FigureLink      = "wire.link"        // payload bytes of the links for the same, control included
	FigureForwarded = "wire.forwarded"   // stored blocks sent to other nodes, for each stored block
	FigureCPUMost   = "balance.cpu"      // CPU of the busiest node over the mean, write phase
	FigureHeldMost  = "balance.held"     // held blocks of the fullest node over the mean
	FigureSeconds   = "seconds"          // of the write phase, wall time
	FigureAgain     = "queries.again"    // queries asked again because the answer was partial
	FigureStale     = "queries.stale"    // answers marked as perhaps stale
	FigureGaps      = "streams.gaps"     // gaps that replay closed
	FigureFrames    = "frames.forwarded" // frames sent to other nodes
)

// MeasureCluster measures clusters of node processes on loopback: fresh ones for every
// repetition, sizes in turn. All of them are given the same work; every block must
// arrive and every query have the same answer at every size, or it is an error.
func MeasureCluster(ctx context.Context, c ClusterConfig) (*ClusterReport, error) {
	c.SetDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	work, err := newClusterWork(c)
	if err != nil {
		return nil, err
	}
	r := &ClusterReport{
		Time: time.Now().UTC().Truncate(time.Second), Host: thisHost(), Trace: c.Trace, Generated: c.Trace == "",
		Workers: c.Workers, Replicas: c.Replicas, BlockSize: clusterBlockSize, Rate: c.Rate, Repeat: c.Repeat,
		Requests: len(work.trace.Requests), Queries: len(work.queries),
	}
	r.FirstIDs, r.LargestIDs = work.firstIDs()
	runs := make([]map[string][]float64, len(c.Nodes))
	for i := range runs {
		runs[i] = map[string][]float64{}
	}
	for rep := range c.Repeat {
		for j := range c.Nodes {
			i := (rep + j) % len(c.Nodes)
			c.progress("%d nodes: repetition %d of %d", c.Nodes[i], rep+1, c.Repeat)
			run, err := measureCluster(ctx, &c, work, c.Nodes[i], 0)
			if err == nil {
				err = r.agree(run)
			}
			if err != nil {
				return nil, fmt.Errorf("%d nodes, repetition %d: %w", c.Nodes[i], rep+1, err)
			}
			for k, v := range run.figures() {
				runs[i][k] = append(runs[i][k], v)
			}
		}
	}
	for i, n := range c.Nodes {
		s := ClusterSize{Nodes: n, Figures: map[string]Spread{}, Ratios: map[string]float64{}}
		for k, v := range runs[i] {
			s.Figures[k] = NewSpread(v)
			if first := NewSpread(runs[0][k]).Median; first > 0 {
				s.Ratios[k] = s.Figures[k].Median / first
			}
		}
		if !c.NoParts {
			c.progress("%d nodes: profile", n)
			run, err := measureCluster(ctx, &c, work, n, time.Duration(0.9*s.Figures[FigureSeconds].Median*float64(time.Second)))
			if err == nil {
				err = r.agree(run)
			}
			if err != nil {
				return nil, fmt.Errorf("%d nodes, profile: %w", n, err)
			}
			s.divide(run)
		}
		r.Sizes = append(r.Sizes, s)
	}
	return r, nil
}

func (c *ClusterConfig) progress(format string, args ...any) {
	if c.Progress != nil {
		c.Progress(fmt.Sprintf(format, args...))
	}
}

// agree takes the work and the answers of the first run and compares those of the
// others with it.
func (r *ClusterReport) agree(run *clusterRun) error {
	if r.Batches == 0 {
		r.Batches, r.Stored, r.Removed, r.Held, r.Answers = run.batches, run.stored, run.removed, run.held, Hex(run.answers)
	}
	switch {
	case run.stored != r.Stored || run.removed != r.Removed || run.held != r.Held:
		return fmt.Errorf("%w: engines stored %d, removed %d and hold %d blocks, but %d, %d and %d in the first repetition", ErrCluster, run.stored, run.removed, run.held, r.Stored, r.Removed, r.Held)
	case Hex(run.answers) != r.Answers:
		return fmt.Errorf("%w: the answers to the queries are %#x, those of the first repetition %#x", ErrWrongAnswers, run.answers, uint64(r.Answers))
	}
	return nil
}

// divide fills the parts from a profiled run: its shares, the CPU of the others.
func (s *ClusterSize) divide(run *clusterRun) {
	write, total, io := s.Figures[FigureWrite].Median, s.Figures[FigureTotal].Median, s.Figures[FigureIO].Median
	// Medians of different figures need not come from one run.
	io = min(io, write)
	s.Parts = map[string]float64{partIO: io, partQuery: total - min(total, write)}
	var sum int64
	for _, n := range run.samples {
		sum += n
	}
	s.Samples = sum
	for _, part := range clusterParts {
		if n := run.samples[part]; sum > 0 {
			s.Parts[part] += (min(write, total) - io) * float64(n) / float64(sum)
		}
	}
	if sum < 100 {
		s.Notes = append(s.Notes, fmt.Sprintf("%d samples are too few to tell the parts apart: give more --blocks", sum))
	}
}

// PartNames returns the parts in the order of a block's way.
func PartNames() []string { return slices.Clone(clusterParts) }

// partsSum is what all parts come to.
func (s *ClusterSize) partsSum() (sum float64) {
	for _, name := range slices.Sorted(maps.Keys(s.Parts)) {
		sum += s.Parts[name]
	}
	return sum
}

// clusterTrace returns the requests: those of a file, or generated ones with many first
// blocks.
func clusterTrace(c ClusterConfig) (*trace.Trace, error) {
	if c.Trace != "" {
		t, err := trace.ReadFile(c.Trace)
		if err != nil {
			return nil, err
		}
		return cutTrace(t, c.Blocks), nil
	}
	// A request of the generated kind brings some 300 blocks; too many are cut.
	g := trace.DefaultGenerate(c.Blocks/100 + 100)
	g.Common, g.SystemPrompts, g.SystemSkew = 0, 1000, 0.5
	g.SystemTokens = trace.LogNormal{Median: 1500, Sigma: 0.5}
	t, err := trace.Generate(g)
	if err != nil {
		return nil, err
	}
	return cutTrace(t, c.Blocks), nil
}

// cutTrace keeps the first requests that bring about so many blocks, each id counted
// once.
func cutTrace(t *trace.Trace, blocks int) *trace.Trace {
	seen := map[uint32]bool{}
	for i := range t.Requests {
		for _, id := range t.Requests[i].IDs {
			seen[id] = true
		}
		if len(seen)*t.TokensPerID/clusterBlockSize >= blocks {
			return t.Head(i + 1)
		}
	}
	return t
}
