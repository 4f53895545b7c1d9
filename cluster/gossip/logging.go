package gossip

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	logEvery = 10 * time.Second
	// logKinds bounds the kinds of messages that are told apart.
	logKinds = 128
)

// throttle passes one message of a kind in logEvery and counts the rest. It is also the
// io.Writer behind memberlist's logger.
type throttle struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		kinds map[string]*kind
	}
}

type kind struct {
	last    time.Time
	dropped int
}

func newThrottle(log *slog.Logger) *throttle {
	t := &throttle{log: log}
	t.mu.kinds = map[string]*kind{}
	return t
}

// tell logs a message unless one of its kind was logged a moment ago.
func (t *throttle) tell(level slog.Level, kind, msg string, args ...any) {
	if !t.log.Enabled(context.Background(), level) {
		return
	}
	dropped, ok := t.pass(kind)
	if !ok {
		return
	}
	if dropped > 0 {
		args = append(args, "left_out", dropped)
	}
	t.log.Log(context.Background(), level, msg, args...)
}

func (t *throttle) pass(name string) (dropped int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	k := t.mu.kinds[name]
	if k == nil {
		if len(t.mu.kinds) >= logKinds {
			clear(t.mu.kinds)
		}
		t.mu.kinds[name] = &kind{last: now}
		return 0, true
	}
	if now.Sub(k.last) < logEvery {
		k.dropped++
		return 0, false
	}
	dropped = k.dropped
	k.last, k.dropped = now, 0
	return dropped, true
}

// Write takes one line of memberlist, "[LEVEL] memberlist: text". Its errors are about
// single packets and streams, which it repeats, so they are warnings here; its
// information is about its own workings.
func (t *throttle) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	level := slog.LevelWarn
	if rest, ok := strings.CutPrefix(text, "["); ok {
		if name, rest, ok := strings.Cut(rest, "] "); ok {
			text = rest
			if name == "DEBUG" || name == "INFO" {
				level = slog.LevelDebug
			}
		}
	}
	text = strings.TrimPrefix(text, "memberlist: ")
	t.tell(level, "memberlist "+kindOf(text), "memberlist: "+text)
	return len(line), nil
}

// kindOf is a message without what differs from case to case: the words before the
// first that has a digit, a quote or a colon in it.
func kindOf(text string) string {
	end := 0
	for _, word := range strings.SplitAfter(text, " ") {
		if strings.ContainsAny(word, "0123456789'\":=%") {
			break
		}
		end += len(word)
	}
	return text[:end]
}
