package process

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
)

// A process that ends by itself says how, with the end of its output; one that was
// stopped has not failed; what it writes is awaited.
func TestProcess(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "address")
	p, err := Start("talker", filepath.Join(dir, "log"), "sh", "-c", "echo here > "+file+".tmp; mv "+file+".tmp "+file+"; echo last words; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.AwaitFile(context.Background(), file)
	if err != nil || text != "here\n" {
		t.Errorf("%q, %v", text, err)
	}
	<-p.Ended
	if err := p.Failure(); err == nil || !strings.Contains(err.Error(), "talker ended (exit status 3)") || !strings.Contains(err.Error(), "last words") {
		t.Errorf("failure: %v", err)
	}
	if _, err := p.AwaitFile(context.Background(), file+"2"); err == nil || !strings.Contains(err.Error(), "last words") {
		t.Errorf("a file that never comes: %v", err)
	}
	sleeper, err := Start("sleeper", filepath.Join(dir, "log2"), "sleep", "600")
	if err != nil {
		t.Fatal(err)
	}
	if err := sleeper.Failure(); err != nil {
		t.Errorf("running: %v", err)
	}
	StopAll([]*Process{sleeper, p})
	if err := sleeper.Failure(); err != nil {
		t.Errorf("stopped: %v", err)
	}
	if _, err := Start("nobody", filepath.Join(dir, "log3"), "no-such-program"); err == nil || !strings.Contains(err.Error(), "start nobody") {
		t.Errorf("a program that is not there: %v", err)
	}
}
