package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A node with a data folder writes what it holds and says what that costs; one without
// says what to do.
func TestSnapshot(t *testing.T) {
	cleanEnvironment(t)
	alone := serve(t)
	code, _, errs := kvcluster(t, "snapshot", "--server", alone)
	if code != exitFailed || !strings.Contains(errs, "--data") {
		t.Errorf("without a folder: exit code %d, %s", code, errs)
	}

	data := filepath.Join(t.TempDir(), "data")
	url := serve(t, "--data", data, "--name", "solo", "--gossip", "127.0.0.1:0", "--raft", "127.0.0.1:0", "--link", "127.0.0.1:0", "--lanes", "1")
	t.Setenv("KVCLUSTER_SERVER", url)
	ok(t, "mock", "--workers", "2", "--format", "vllm-map", "--requests", "30", "--speedup", "0", "--keep", "--quiet", "--model", "trip", "--register", url)
	type result struct {
		Path   string
		Bytes  int64
		Slots  int
		Copies int
		Held   uint64 `json:"held_blocks"`
	}
	var r result
	awaitTrue(t, func() string {
		if r = parsed[result](t, ok(t, "snapshot", "--json")); r.Slots != 2 || r.Copies != 512 || r.Held == 0 {
			return "not all is there: " + ok(t, "snapshot")
		}
		return ""
	})
	if info, err := os.Stat(r.Path); err != nil || info.Size() != r.Bytes || filepath.Dir(r.Path) != data {
		t.Errorf("%+v, file %v, %v", r, info, err)
	}
	if out := ok(t, "snapshot"); !strings.Contains(out, "2 slots, 512 copies") || !strings.Contains(out, "bytes a block") {
		t.Errorf("said: %s", out)
	}
}
