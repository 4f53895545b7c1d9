package translate

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"golang.org/x/sys/unix"
)

var benchHeap = flag.Bool("heap", false, "benchmarks: take memory from the Go heap")

var benchParts = flag.Bool("parts", false, "benchmarks: print bytes by part")

func printParts(ts []*Translator) {
	var held, table, slots, units, used, runs, parts float64
	for _, t := range ts {
		m := &t.blocks
		held += float64(m.count)
		table += float64(len(m.table) * 4)
		slots += float64(m.buckets * bucketSlots)
		units += float64((len(m.chunks) - m.holes) * chunkUnits)
		used += float64((len(m.chunks)-m.holes)*chunkUnits - m.freeUnits)
		runs += float64(t.runs.bytes())
		parts += float64(t.parts.bytes())
	}
	fmt.Printf("held %.0f load %.3f; B/held: table %.2f units %.2f (%.3f units used, %.2f of 4 positions held) runs %.2f parts %.2f\n",
		held, held/slots, table/held, units*40/held, used/units, held/used, runs/held, parts/held)
}

// cpuTime is the CPU time of this thread; the caller is locked to it.
func cpuTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

func benchMemory() *Memory {
	if *benchHeap {
		return nil
	}
	return NewMemory()
}

// rss is the resident memory of the process in bytes.
func rss() uint64 {
	b, _ := os.ReadFile("/proc/self/statm")
	var size, res uint64
	_, _ = fmt.Sscan(strings.TrimSpace(string(b)), &size, &res)
	return res * uint64(os.Getpagesize())
}

// BenchmarkOpList plays the common op list (128 workers in turn, so that every
// event meets cold tables) into a sink that only looks at the frame's length.
func BenchmarkOpList(b *testing.B) {
	l := buildOpList(b, 4, 128, 8192)
	if l.known && l.checksum != 0x5f8cec62dff196bc {
		b.Fatalf("checksum %#x", l.checksum)
	}
	for _, k := range allKernels() {
		b.Run(k.name, func(b *testing.B) {
			runtime.LockOSThread()
			var cpu, held, bytes, reserved, resident uint64
			var words int
			for b.Loop() {
				runtime.GC()
				before := rss()
				mem := benchMemory()
				ts := newFleet(128, mem, k.kernel)
				from := cpuTime()
				l.run(ts, func(f indexer.Frame) error { words += len(f); return nil })
				cpu += uint64(cpuTime() - from)
				held, bytes = 0, 0
				for _, t := range ts {
					s := t.Stats()
					held, bytes = held+s.Mapped, bytes+s.Bytes
				}
				if *benchParts {
					printParts(ts)
				}
				if mem != nil {
					reserved, _ = mem.Reserved()
				}
				runtime.GC()
				resident = rss() - before
				for _, t := range ts {
					t.Close()
				}
			}
			n := float64(l.storedBlocks+l.remBlocks) * float64(b.N)
			b.ReportMetric(float64(cpu)/n, "cpu-ns/block")
			b.ReportMetric(float64(bytes)/float64(held), "B/held")
			b.ReportMetric(float64(reserved)/float64(held), "reserved-B/held")
			b.ReportMetric(float64(resident)/float64(held), "rss-B/held")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkDecode lets 64 sequences on each of 64 workers grow by one block in turn.
func BenchmarkDecode(b *testing.B) {
	const workers, sequences, rounds = 64, 64, 200
	for _, grouped := range []bool{false, true} {
		name := map[bool]string{false: "batch=1", true: "batch=64"}[grouped]
		b.Run(name, func(b *testing.B) {
			runtime.LockOSThread()
			var cpu, held, bytes uint64
			for b.Loop() {
				ts := newFleet(workers, benchMemory(), bestKernel())
				from := cpuTime()
				playDecode(ts, sequences, rounds, grouped)
				cpu += uint64(cpuTime() - from)
				held, bytes = 0, 0
				for _, t := range ts {
					s := t.Stats()
					held, bytes = held+s.Mapped, bytes+s.Bytes
					t.Close()
				}
			}
			b.ReportMetric(float64(cpu)/float64(workers*sequences*rounds*b.N), "cpu-ns/store")
			b.ReportMetric(float64(bytes)/float64(held), "B/held")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func playDecode(ts []*Translator, sequences, rounds int, grouped bool) {
	key := func(w, s, r int) uint64 { return mix64(uint64(w)<<40 | uint64(s)<<20 | uint64(r)) }
	var e, c [1]uint64
	words := 0
	sink := func(f indexer.Frame) error { words += len(f); return nil }
	store := func(t *Translator, w, s, r int) {
		e[0] = key(w, s, r)
		c[0] = e[0] + 1
		st := Store{Engines: e[:], Content: blockhash.Content{Locals: c[:]}}
		if r > 0 {
			st.HasParent, st.Parent = true, key(w, s, r-1)
		}
		t.Store(st)
	}
	seq := uint64(0)
	for r := range rounds {
		if grouped { // one engine step: one batch with a block of every sequence
			for w, t := range ts {
				seq++
				t.Begin(seq)
				for s := range sequences {
					store(t, w, s, r)
				}
				_ = t.End(sink)
			}
			continue
		}
		for s := range sequences {
			for w, t := range ts {
				seq++
				t.Begin(seq)
				store(t, w, s, r)
				_ = t.End(sink)
			}
		}
	}
}

// BenchmarkPageSizeOne is SGLang's cadence with a block per token: prompts of
// 1,500 blocks below a shared one, then 64 one-block stores each, and the removal
// of a whole prompt, last block first, in one event.
func BenchmarkPageSizeOne(b *testing.B) {
	runtime.LockOSThread()
	const workers, prompts, live, prompt, decoded = 16, 120, 40, 1500, 64
	var cpu, bytes, held uint64
	ops := 0
	for b.Loop() {
		ts := newFleet(workers, benchMemory(), bestKernel())
		sink := func(indexer.Frame) error { return nil }
		keys := make([]uint64, prompt+decoded)
		locals := make([]uint64, prompt+decoded)
		fill := func(w, p int) {
			for i := range keys {
				locals[i] = mix64(uint64(w)<<50 | uint64(p)<<20 | uint64(i))
				keys[i] = locals[i] ^ 0x5555
			}
		}
		gone := make([]uint64, len(keys))
		seq := uint64(0)
		batch := func(t *Translator, f func()) {
			seq++
			t.Begin(seq)
			from := cpuTime()
			f()
			_ = t.End(sink)
			cpu += uint64(cpuTime() - from)
		}
		for p := range prompts {
			for w, t := range ts {
				fill(w, p)
				batch(t, func() {
					t.Store(Store{Engines: keys[:prompt], Content: blockhash.Content{Locals: locals[:prompt]}})
					for i := prompt; i < len(keys); i++ {
						t.Store(Store{HasParent: true, Parent: keys[i-1], Engines: keys[i : i+1], Content: blockhash.Content{Locals: locals[i : i+1]}})
					}
				})
				ops += len(keys)
				if p >= live {
					fill(w, p-live)
					for i, k := range keys {
						gone[len(gone)-1-i] = k
					}
					batch(t, func() { t.Remove(indexer.Device, gone) })
					ops += len(gone)
				}
			}
		}
		held, bytes = 0, 0
		for _, t := range ts {
			s := t.Stats()
			held, bytes = held+s.Mapped, bytes+s.Bytes
			t.Close()
		}
	}
	b.ReportMetric(float64(cpu)/float64(ops), "cpu-ns/block")
	b.ReportMetric(float64(bytes)/float64(held), "B/held")
	b.ReportMetric(0, "ns/op")
}
