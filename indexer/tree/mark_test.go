package tree

import (
	"context"
	"runtime"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// A mark is passed when its own frames are applied, not when as many others are.
func TestMark(t *testing.T) {
	x, err := Open(Config{Lanes: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	w := x.NewWriter().(*writer)
	defer w.Close()
	var parts [2]indexer.PartitionID // one in each lane
	for laneOf(0, parts[0], 2) != 0 {
		parts[0]++
	}
	for laneOf(0, parts[1], 2) != 1 {
		parts[1]++
	}
	var b indexer.FrameBuilder
	write := func(lane int, run indexer.Run) {
		t.Helper()
		b.Reset(indexer.Header{Partition: parts[lane], Life: 1, Tenure: 1})
		locals, engines := b.Store(indexer.Device, run, 0, indexer.Parent{}, 1)
		locals[0], engines[0] = uint64(run)+1, 1
		if err := w.Write(b.Frame()); err != nil {
			t.Fatal(err)
		}
	}
	held, release, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- x.do(context.Background(), 0, func(*Lane) {
			close(held)
			<-release
		})
	}()
	<-held
	write(0, 0)
	mark := w.AppendMark(nil)
	for run := range indexer.Run(3) {
		write(1, run)
	}
	for w.rings[1].applied.Load() < 3 {
		runtime.Gosched()
	}
	if applied := w.Applied(); applied < 1 || w.Passed(mark) {
		t.Errorf("%d frames of the other lane are applied; passed: %v", applied, w.Passed(mark))
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !w.Passed(mark) || !w.Passed(w.AppendMark(nil)) {
		t.Error("not passed although everything is applied")
	}
}
