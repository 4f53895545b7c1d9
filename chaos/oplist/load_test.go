package oplist

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvcluster/kvcluster/chaos/trace"
)

func TestLoad(t *testing.T) {
	cfg := Config{Copies: 1, Workers: 4, Capacity: 100}
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	l, made, err := Load(path, cfg)
	if err != nil || !made || l.Totals().Queries != 12031 {
		t.Fatalf("without a file: generated %v, %v", made, err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(generated(t, 50).Write(f), f.Close()); err != nil {
		t.Fatal(err)
	}
	l, made, err = Load(path, cfg)
	if err != nil || made || l.Totals().Queries != 50 {
		t.Fatalf("with a file: generated %v, %v", made, err)
	}
	if want := build(t, generated(t, 50), cfg); l.Totals() != want.Totals() {
		t.Errorf("totals %+v, want %+v", l.Totals(), want.Totals())
	}
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(path, cfg); !errors.Is(err, trace.ErrFormat) {
		t.Errorf("with a file that is no trace: %v", err)
	}
}
