package protocol

import (
	"flag"
	"testing"
)

// -deep looks at the larger bounds as well: minutes and some GB.
var deep = flag.Bool("deep", false, "explore the larger bounds")

const limit = 40_000_000

type copyCase struct {
	name  string
	model Copy
	want  []Fault // any of them; none = clean
}

func testCopy(t *testing.T, cases []copyCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, err := Explore[copyState](c.model, limit)
			judge(t, r, err, c.want)
		})
	}
}

func judge(t *testing.T, r Result, err error, want []Fault) {
	t.Helper()
	switch {
	case err != nil:
		t.Error(err)
	case len(want) == 0 && r.Fault != None:
		t.Errorf("want clean: %v", r)
	case len(want) > 0:
		found := false
		for _, f := range want {
			found = found || r.Fault == f
		}
		if !found {
			t.Errorf("want %v: %v", want, r)
		}
	}
	t.Log(r)
}

func TestCopy(t *testing.T) {
	testCopy(t, []copyCase{
		{"two batches", Copy{Batches: 2}, nil},
		{"the target restarts", Copy{Batches: 2, Restart: true}, nil},
		{"the ingest dies", Copy{Batches: 2, Crash: true}, nil},
		{"others", Copy{Batches: 2, Others: true}, nil},
	})
}

func TestCopyMutants(t *testing.T) {
	testCopy(t, []copyCase{
		{"ready without having caught up", Copy{Batches: 2, Rules: Rules{NoCatchUp: true}}, []Fault{Under}},
		{"the source is left at the commit", Copy{Batches: 2, Rules: Rules{StopAtCommit: true}}, []Fault{Under}},
		{"the ready target does not count", Copy{Batches: 2, Rules: Rules{ReadyUncounted: true}}, []Fault{Under}},
		{"no fence", Copy{Batches: 2, Rules: Rules{NoFence: true}}, []Fault{Parity}},
		{"no boot id", Copy{Batches: 2, Restart: true, Rules: Rules{NoBoot: true}}, []Fault{Under}},
		{"no tenure", Copy{Batches: 2, Crash: true, Rules: Rules{NoTenure: true}}, []Fault{Over, Under}},
		{"the source serves on", Copy{Batches: 2, Rules: Rules{ServeOn: true}}, []Fault{Under}},
	})
}

func TestCopyHeldBack(t *testing.T) {
	testCopy(t, []copyCase{
		{"two batches", Copy{Batches: 2, Hold: true, Room: 3}, nil},
		{"others, room for one", Copy{Batches: 2, Others: true, Hold: true, Room: 1}, nil},
		{"others, room for none", Copy{Batches: 2, Others: true, Hold: true}, nil},
		{"the target restarts", Copy{Batches: 2, Hold: true, Room: 1, Restart: true}, nil},
		{"the ingest dies", Copy{Batches: 2, Hold: true, Room: 1, Crash: true}, nil},
		{"the target counts once it is ready", Copy{Batches: 2, Hold: true, Room: 3, Rules: Rules{CountedLate: true}}, nil},
	})
}

func TestCopyHeldBackMutants(t *testing.T) {
	held := func(others bool, room uint8, r Rules) Copy {
		return Copy{Batches: 2, Others: others, Hold: true, Room: room, Rules: r}
	}
	restarts, dies := held(false, 3, Rules{NoBoot: true}), held(false, 3, Rules{NoTenure: true})
	restarts.Restart, dies.Crash = true, true
	testCopy(t, []copyCase{
		{"nothing is held", held(true, 3, Rules{HoldNothing: true}), []Fault{Parity}},
		{"held batches before the fill", held(true, 3, Rules{FillLast: true}), []Fault{Parity}},
		{"what does not fit is left out", held(true, 0, Rules{OverflowGoesOn: true}), []Fault{Parity}},
		{"a dump of an earlier fence", held(true, 0, Rules{AnyDump: true}), []Fault{Parity}},
		{"a report before all is acked", held(false, 3, Rules{ReportUnacked: true}), []Fault{Under}},
		{"and counted late", held(false, 3, Rules{ReportUnacked: true, CountedLate: true}), []Fault{Under}},
		{"the source serves on", held(false, 3, Rules{ServeOn: true}), []Fault{Under}},
		{"the source is left at the commit", held(false, 3, Rules{StopAtCommit: true}), []Fault{Under}},
		{"no boot id", restarts, []Fault{Under}},
		{"no tenure", dies, []Fault{Over, Under}},
	})
}

func TestDeepCopy(t *testing.T) {
	if !*deep {
		t.Log("only with -deep")
		return
	}
	testCopy(t, []copyCase{
		{"three batches", Copy{Batches: 3}, nil},
		{"others, the target restarts, the ingest dies", Copy{Batches: 2, Others: true, Restart: true, Crash: true}, nil},
		{"three batches, held back", Copy{Batches: 3, Hold: true, Room: 3}, nil},
		{"three batches, held back, room for one", Copy{Batches: 3, Hold: true, Room: 1}, nil},
		{"held back, others, the target restarts, the ingest dies", Copy{Batches: 2, Others: true, Hold: true, Room: 1, Restart: true, Crash: true}, nil},
	})
}
