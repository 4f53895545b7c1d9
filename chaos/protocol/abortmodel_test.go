package protocol

import "testing"

type abortCase struct {
	name  string
	model Abort
	want  []Fault
}

func testAbort(t *testing.T, cases []abortCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, err := Explore[abortState](c.model, limit)
			judge(t, r, err, c.want)
		})
	}
}

func TestAbort(t *testing.T) {
	testAbort(t, []abortCase{
		{"one batch", Abort{Batches: 1}, nil},
		{"one batch, held back", Abort{Batches: 1, Hold: true}, nil},
		{"acks without the move", Abort{Batches: 1, Rules: AbortRules{AcksUnmarked: true}}, nil},
		{"closed copies take frames", Abort{Batches: 1, Rules: AbortRules{ClosedTakes: true}}, nil},
		{"held back, acks without the move", Abort{Batches: 1, Hold: true, Rules: AbortRules{AcksUnmarked: true}}, nil},
		{"held back, closed copies take frames", Abort{Batches: 1, Hold: true, Rules: AbortRules{ClosedTakes: true}}, nil},
	})
}

func TestAbortMutants(t *testing.T) {
	testAbort(t, []abortCase{
		{"an abort closes newer copies", Abort{Batches: 1, Rules: AbortRules{AbortCloses: true}}, []Fault{Parity}},
		{"a resync does not reset", Abort{Batches: 2, Quiet: true, Rules: AbortRules{NoReset: true}}, []Fault{Parity}},
		{"held back: an abort closes newer copies", Abort{Batches: 1, Hold: true, Rules: AbortRules{AbortCloses: true}}, []Fault{Parity}},
		{"held back: a resync does not reset", Abort{Batches: 2, Quiet: true, Hold: true, Rules: AbortRules{NoReset: true}}, []Fault{Parity}},
	})
}

func TestDeepAbort(t *testing.T) {
	if !*deep {
		t.Log("only with -deep")
		return
	}
	testAbort(t, []abortCase{
		{"two batches", Abort{Batches: 2}, nil},
		{"two batches, held back", Abort{Batches: 2, Hold: true}, nil},
		{"acks without the move", Abort{Batches: 2, Rules: AbortRules{AcksUnmarked: true}}, nil},
		{"closed copies take frames", Abort{Batches: 2, Rules: AbortRules{ClosedTakes: true}}, nil},
	})
}
