package mockengine

import (
	"syscall"
	"testing"

	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/transport"
)

// nowhere takes batches and forgets them, so that the benchmark is the engine's own.
type nowhere struct{ fakePublisher }

func (n *nowhere) Publish(string, uint64, []byte) error { return nil }
func (n *nowhere) Close() error                         { return nil }

type nowhereNetwork struct{ fakeNetwork }

func (n *nowhereNetwork) NewPublisher(cfg transport.PublisherConfig) (transport.Publisher, error) {
	return &nowhere{fakePublisher{net: &n.fakeNetwork, cfg: cfg}}, nil
}

// cpuTime is what the process has used, in ns: the machine may be shared.
func cpuTime(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkFleet is what a fleet of 16 workers costs without sockets, by block.
func BenchmarkFleet(b *testing.B) {
	tr, err := trace.Generate(trace.DefaultGenerate(1000))
	if err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]Config{
		"engine hashes": {BlockSize: 16},
		"fast hashes":   {BlockSize: 16, Hash: HashFast},
		"page size 1":   {BlockSize: 1, Trace: tr.Head(100), Hash: HashFast, Formats: []Format{SGLangMap}, Capacity: 200000},
	} {
		b.Run(name, func(b *testing.B) {
			c.Workers, c.MaxBatchRate = 16, 1e9
			if c.Trace == nil {
				c.Trace = tr
			}
			blocks, cpu := uint64(0), cpuTime(b)
			for b.Loop() {
				f, err := New(c)
				if err != nil {
					b.Fatal(err)
				}
				if err := f.Open(&nowhereNetwork{}); err != nil {
					b.Fatal(err)
				}
				if err := f.Run(b.Context()); err != nil {
					b.Fatal(err)
				}
				s := f.Stats()
				blocks += s.Stored.Blocks + s.Removed.Blocks
			}
			b.ReportMetric(float64(cpuTime(b)-cpu)/float64(blocks), "cpu-ns/block")
		})
	}
}
