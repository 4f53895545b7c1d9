package differential

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/chaos/trace"
)

var fullList = flag.Bool("differential.full", false, "replay the whole public trace, not only its first 2,000 requests")

func TestOpListReference(t *testing.T) { opListAll(t, references()) }

// opListAll replays a list of a generated trace and, if the public trace is beside
// the repository, the smaller of its lists, whose answers are known as a whole.
func opListAll(t *testing.T, setup Setup) {
	t.Run("generated", func(t *testing.T) {
		tr, err := trace.Generate(trace.DefaultGenerate(600))
		if err != nil {
			t.Fatal(err)
		}
		l, err := oplist.Build(tr, oplist.Config{Copies: 2, Workers: 12, Capacity: 500})
		if err != nil {
			t.Fatal(err)
		}
		got, err := OpList(setup, l, true)
		if err != nil {
			t.Fatal(err)
		}
		if want := l.Expected(); got != want {
			t.Errorf("answers %+v, want %+v", got, want)
		}
	})
	tr, err := trace.ReadFile(filepath.Join("..", "..", "..", "shared", "traces", oplist.Conversation))
	if errors.Is(err, os.ErrNotExist) {
		return // the generated list stands for it
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Run("conversation", func(t *testing.T) {
		if !*fullList {
			tr = tr.Head(2000)
		}
		l, err := oplist.Build(tr, oplist.Config{Copies: 1, Workers: 16, Capacity: 2048})
		if err != nil {
			t.Fatal(err)
		}
		got, err := OpList(setup, l, true)
		if err != nil {
			t.Fatal(err)
		}
		want := l.Expected()
		if known, ok := oplist.ConversationKnown(l.Config()); ok && *fullList {
			want = known.Answers
		}
		if got != want {
			t.Errorf("answers %+v, want %+v", got, want)
		}
	})
}
