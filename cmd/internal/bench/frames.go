package bench

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

// frameLog is canonical frames, one after another in one piece of memory.
type frameLog struct {
	words []uint64
	ends  []int
}

func (l *frameLog) add(f indexer.Frame) error {
	l.words = append(l.words, f...)
	l.ends = append(l.ends, len(l.words))
	return nil
}

func (l *frameLog) len() int { return len(l.ends) }

func (l *frameLog) frame(i int) indexer.Frame {
	from := 0
	if i > 0 {
		from = l.ends[i-1]
	}
	return indexer.Frame(l.words[from:l.ends[i]:l.ends[i]])
}

// recordFrames translates the stores and removals of a tape. The translators are gone
// when it returns. marks has, for every op, the number of frames before it.
func recordFrames(tape *Tape) (log *frameLog, marks []int, err error) {
	a, err := newIndexArm(tape.Workers())
	if err != nil {
		return nil, nil, err
	}
	log = &frameLog{words: make([]uint64, 0, 2*len(tape.keys)+16*tape.Len())}
	a.apply = log.add
	marks = make([]int, tape.Len())
	var op oplist.Op
	for i := range tape.Len() {
		marks[i] = log.len()
		tape.At(i, &op)
		switch op.Kind {
		case oplist.Stored:
			a.store(op.Worker, op.HasParent, op.Parent, op.Contents, op.Keys)
		case oplist.Removed:
			a.remove(op.Worker, op.Keys)
		}
	}
	for _, t := range a.workers {
		t.Close()
	}
	a.reader.Close()
	if err := errors.Join(a.err, a.lane.Close()); err != nil {
		return nil, nil, fmt.Errorf("record frames: %w", err)
	}
	runtime.GC()
	debug.FreeOSMemory()
	return log, marks, nil
}

// laneUnderTest is a lane used inline, which must refuse nothing.
type laneUnderTest struct {
	*tree.Lane
	fault error
}

func openLane() (*laneUnderTest, error) {
	l := &laneUnderTest{}
	lane, err := tree.OpenLane(tree.LaneConfig{OnFault: func(_ indexer.Header, err error) { l.fault = err }})
	if err != nil {
		return nil, err
	}
	l.Lane = lane
	return l, nil
}

// end closes the lane and returns what went wrong.
func (l *laneUnderTest) end() error { return errors.Join(l.fault, l.Close()) }

func (l *laneUnderTest) held() uint64 { return l.Stats().Held[indexer.Device] }

// liveBytes is what the lane uses.
func (l *laneUnderTest) liveBytes() uint64 {
	n := uint64(0)
	for _, b := range l.Stats().Bytes {
		n += b
	}
	return n
}
