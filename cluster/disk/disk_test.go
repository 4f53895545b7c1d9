package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
)

// small is a Config that fits into any disk a test may run on.
func small(dir string) Config {
	return Config{Dir: dir, Ballast: 64 << 10, Reserve: -1, LowBelow: -1}
}

func mustOpen(t *testing.T, cfg Config) *Folder {
	t.Helper()
	f, err := OpenConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func mustStores(t *testing.T, f *Folder) raftlog.Stores {
	t.Helper()
	s, err := f.Stores()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustClose(t *testing.T, f *Folder) {
	t.Helper()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantFault checks the kind of an error and that its text stands alone: it names the
// path and ends as a sentence.
func wantFault(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error is %v, want kind %v", err, kind)
	}
	text := err.Error()
	if !strings.HasSuffix(text, ".") || strings.Contains(text, "\n") || strings.Count(text, ". ") > 1 {
		t.Errorf("not one or two plain sentences: %q", text)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not say %q", text, w)
		}
	}
}

func entries(from, to uint64) (out []*raft.Log) {
	for i := from; i <= to; i++ {
		out = append(out, &raft.Log{Index: i, Term: 1 + i/100, Type: raft.LogCommand, Data: []byte(fmt.Sprintf("entry %d %s", i, strings.Repeat("x", 200)))})
	}
	return out
}

func fill(t *testing.T, s raftlog.Stores, from, to uint64) {
	t.Helper()
	if err := s.Log.StoreLogs(entries(from, to)); err != nil {
		t.Fatal(err)
	}
	if err := s.Stable.SetUint64([]byte("CurrentTerm"), 7); err != nil {
		t.Fatal(err)
	}
}

func snapshot(t *testing.T, s raftlog.Stores, index uint64) string {
	t.Helper()
	_, tr := raft.NewInmemTransport("a")
	sink, err := s.Snapshots.Create(1, index, 2, raft.Configuration{}, 1, tr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(sink, "state up to %d", index); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	return sink.ID()
}

func TestIdentityAndLogSurvive(t *testing.T) {
	cfg := small(filepath.Join(t.TempDir(), "a", "b"))
	f := mustOpen(t, cfg)
	first := f.Identity()
	if len(first.ServerID) != 32 || first.Name != "" || first.ClusterID != "" || first.HasLog {
		t.Fatalf("new identity %+v", first)
	}
	for range 2 { // the same again is fine
		if err := errors.Join(f.SetName("n1"), f.SetClusterID("c1")); err != nil {
			t.Fatal(err)
		}
	}
	s := mustStores(t, f)
	if f.HasData() {
		t.Error("a new folder has data")
	}
	fill(t, s, 1, 50)
	if !f.HasData() {
		t.Error("fifty entries are no data")
	}
	snapshot(t, s, 20)
	if err := f.SavePeers([]string{"10.0.0.1:7946", "10.0.0.2:7946"}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, f)
	mustClose(t, f)
	if err := f.SetName("n1"); !errors.Is(err, ErrClosed) {
		t.Errorf("SetName after Close: %v", err)
	}

	f = mustOpen(t, cfg)
	id := f.Identity()
	if want := (Identity{first.ServerID, "n1", "c1", true}); id != want {
		t.Errorf("identity %+v, want %+v", id, want)
	}
	wantFault(t, f.SetName("n2"), ErrOtherNode, `"n1"`, `"n2"`, cfg.Dir)
	wantFault(t, f.SetClusterID("c2"), ErrOtherNode, "c1", "c2", cfg.Dir)
	s = mustStores(t, f)
	if !f.HasData() {
		t.Error("a used folder has no data")
	}
	for i := uint64(1); i <= 50; i++ {
		var l raft.Log
		if err := s.Log.GetLog(i, &l); err != nil {
			t.Fatal(err)
		}
		if want := entries(i, i)[0]; string(l.Data) != string(want.Data) || l.Term != want.Term || l.Extensions != nil {
			t.Fatalf("entry %d came back as %+v", i, l)
		}
	}
	if term, err := s.Stable.GetUint64([]byte("CurrentTerm")); err != nil || term != 7 {
		t.Errorf("term %d, %v", term, err)
	}
	if _, err := s.Stable.GetUint64([]byte("LastVoteTerm")); err == nil || err.Error() != "not found" {
		t.Errorf("raft knows a missing key by the text %q, not by %v", "not found", err)
	}
	if err := s.Log.GetLog(51, new(raft.Log)); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("missing entry: %v", err)
	}
	if got := f.Peers(); len(got) != 2 || got[1] != "10.0.0.2:7946" {
		t.Errorf("peers %v", got)
	}
}

// A folder serves raft itself, across a restart.
func TestRaftOnFolder(t *testing.T) {
	cfg := small(t.TempDir())
	for run := range 2 {
		f := mustOpen(t, cfg)
		_, tr := raft.NewInmemTransport("a")
		log, err := raftlog.Open(raftlog.Config{ServerID: f.Identity().ServerID, Heartbeat: 50 * time.Millisecond}, mustStores(t, f), tr, nil)
		if err != nil {
			t.Fatal(err)
		}
		first := state.Command{ID: [16]byte{1}, Found: &state.Founding{ClusterID: "c", Partitions: 4, Replicas: 1}}
		if err := log.Found(t.Context(), "a", first); (run == 0) != (err == nil) {
			t.Fatalf("run %d: found: %v", run, err)
		} else if run == 1 && !errors.Is(err, raftlog.ErrFounded) {
			t.Fatalf("founding again: %v", err)
		}
		if err := errors.Join(log.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMain is also the second process of TestSecondProcess.
func TestMain(m *testing.M) {
	if dir := os.Getenv("KVCLUSTER_TEST_OPEN"); dir != "" {
		_, err := OpenConfig(small(dir))
		fmt.Println(errors.Is(err, ErrInUse), err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestSecondProcess(t *testing.T) {
	cfg := small(t.TempDir())
	f := mustOpen(t, cfg)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "KVCLUSTER_TEST_OPEN="+cfg.Dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := string(out); !strings.HasPrefix(got, "true ") || !strings.Contains(got, fmt.Sprintf("(pid %d)", os.Getpid())) {
		t.Errorf("the second process says %q", got)
	}
	_, err = OpenConfig(cfg) // a second time in the same process
	wantFault(t, err, ErrInUse, cfg.Dir, "another process")
	mustClose(t, f)
	mustOpen(t, cfg)
}

func TestFolderThatIsNone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		_, err := OpenConfig(small(dir))
		wantFault(t, err, ErrPath, dir)
	}
	if _, err := OpenConfig(Config{}); err == nil {
		t.Error("no folder at all was accepted")
	}
	if _, err := OpenConfig(Config{Dir: file, LowBelow: 10, LowAbove: 5}); err == nil {
		t.Error("low space that ends below its beginning was accepted")
	}
}

func TestDamagedIdentity(t *testing.T) {
	write := func(s string) func([]byte) []byte { return func([]byte) []byte { return []byte(s) } }
	edit := func(fn func(*identityOnDisk)) func([]byte) []byte {
		return func(raw []byte) []byte {
			var file identityOnDisk
			if err := json.Unmarshal(raw, &file); err != nil {
				panic(err)
			}
			fn(&file)
			raw, _ = json.Marshal(file)
			return raw
		}
	}
	for name, c := range map[string]struct {
		change func([]byte) []byte
		kind   error
		words  []string
	}{
		"empty":      {write(""), ErrCorrupt, []string{"identity.json", "is damaged", "Move the folder"}},
		"zeros":      {write(strings.Repeat("\x00", 300)), ErrCorrupt, []string{"identity.json"}},
		"half":       {func(raw []byte) []byte { return raw[:len(raw)/2] }, ErrCorrupt, []string{"identity.json"}},
		"no node":    {write(`{"format":1}`), ErrCorrupt, []string{"identity.json"}},
		"no format":  {edit(func(f *identityOnDisk) { f.Format = 0 }), ErrCorrupt, []string{"identity.json"}},
		"one letter": {func(raw []byte) []byte { return []byte(strings.Replace(string(raw), `"n1"`, `"n2"`, 1)) }, ErrCorrupt, []string{"edited"}},
		"no id": {edit(func(f *identityOnDisk) {
			f.Node = []byte(`{"name":"n1"}`)
			f.Check = checksum(f.Node)
		}), ErrCorrupt, []string{"no server id"}},
		"newer": {edit(func(f *identityOnDisk) { f.Format = 2 }), ErrFormat, []string{"newer version", "format 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := small(t.TempDir())
			f := mustOpen(t, cfg)
			if err := f.SetName("n1"); err != nil {
				t.Fatal(err)
			}
			mustClose(t, f)
			path := filepath.Join(cfg.Dir, identityFile)
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, c.change(raw), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = OpenConfig(cfg)
			wantFault(t, err, c.kind, append(c.words, cfg.Dir)...)
		})
	}
}

// Reformatting the file is no damage: the checksum is over the compact form.
func TestIdentityMayBeReformatted(t *testing.T) {
	cfg := small(t.TempDir())
	f := mustOpen(t, cfg)
	id := f.Identity()
	mustClose(t, f)
	path := filepath.Join(cfg.Dir, identityFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Join(strings.Fields(string(raw)), " ")), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := mustOpen(t, cfg).Identity(); got != id {
		t.Errorf("identity %+v, want %+v", got, id)
	}
}

func TestPeersAreAHint(t *testing.T) {
	f := mustOpen(t, small(t.TempDir()))
	if got := f.Peers(); got != nil {
		t.Errorf("peers of a new folder: %v", got)
	}
	if err := os.WriteFile(f.path(peersFile), []byte("{broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := f.Peers(); got != nil {
		t.Errorf("peers of a broken file: %v", got)
	}
	many := make([]string, 200)
	for i := range many {
		many[i] = fmt.Sprintf("10.0.0.%d:7946", i)
	}
	if err := f.SavePeers(many); err != nil {
		t.Fatal(err)
	}
	if got := f.Peers(); len(got) != maxPeers || got[0] != many[0] {
		t.Errorf("%d peers", len(got))
	}
	before, err := os.Stat(f.path(peersFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SavePeers(many); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(f.path(peersFile)); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same peers were written again (%v)", err)
	}
}

func TestRunEnds(t *testing.T) {
	f := mustOpen(t, small(t.TempDir()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
}

// The cache gives what was stored, forgets what was deleted or replaced, and keeps
// nothing that failed.
func TestCache(t *testing.T) {
	_, g, s := onFull(t)
	c := newCache(g, 8)
	want := func(i uint64, data string) {
		t.Helper()
		var l raft.Log
		err := c.GetLog(i, &l)
		if data == "" && !errors.Is(err, raft.ErrLogNotFound) || data != "" && (err != nil || string(l.Data) != data || l.Extensions != nil) {
			t.Errorf("entry %d is %q (%v), want %q", i, l.Data, err, data)
		}
	}
	if err := c.StoreLogs(entries(1, 20)); err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= 20; i++ {
		want(i, string(entries(i, i)[0].Data))
	}
	if err := c.DeleteRange(18, 20); err != nil {
		t.Fatal(err)
	}
	want(19, "")
	if err := c.StoreLog(&raft.Log{Index: 18, Data: []byte("again")}); err != nil {
		t.Fatal(err)
	}
	want(18, "again")
	s.fail(errors.New("broken"))
	if err := c.StoreLog(&raft.Log{Index: 19, Data: []byte("lost")}); err == nil {
		t.Error("stored on a broken disk")
	}
	want(19, "")
}
