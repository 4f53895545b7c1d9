package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvcluster/kvcluster/cmd/internal/bench"
)

func TestBenchRefusesWhatCannotBeMeasured(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
	}{
		{"bench oplist --repeat 0", "--repeat"},
		{"bench oplist --d 0", "copies"},
		{"bench oplist --w 0", "workers"},
		{"bench oplist --cap 0", "capacity"},
		{"bench oplist --trace no/such/file", "no/such/file"},
		{"bench index --repeat=-1", "--repeat"},
		{"bench index --only lame", "lame"},
		{"bench index --trace a --traces b", "trace"},
		{"bench cluster --nodes 0", "nodes"},
		{"bench cluster --replicas 9", "replicas"},
		{"bench cluster --repeat=-1", "repetitions"},
		{"bench", "oplist"},
	} {
		var out, errs strings.Builder
		if code := run(t.Context(), strings.Fields(c.args), &out, &errs); code != exitUsage {
			t.Errorf("%s: exit code %d, want %d; %s", c.args, code, exitUsage, errs.String())
		}
		if !strings.Contains(errs.String(), c.says) {
			t.Errorf("%s: says %q, want something about %q", c.args, errs.String(), c.says)
		}
	}
}

func TestWrongAnswersAreAFailure(t *testing.T) {
	if code := exitCode(fmt.Errorf("op list: %w", bench.ErrWrongAnswers)); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
}

func TestBenchHelpHasExamplesAndHidesTheChild(t *testing.T) {
	var out, errs strings.Builder
	if code := run(t.Context(), strings.Fields("bench index --help"), &out, &errs); code != exitOK || !strings.Contains(out.String(), "Examples:") {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
	for _, r := range bench.Rows() {
		if !strings.Contains(out.String(), r.Name) {
			t.Errorf("the help does not name the row %s", r.Name)
		}
	}
	out.Reset()
	if code := run(t.Context(), strings.Fields("bench --help"), &out, &errs); code != exitOK || strings.Contains(out.String(), "child") {
		t.Errorf("exit code %d: %s", code, out.String())
	}
}
