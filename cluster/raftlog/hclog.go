package raftlog

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// HCLog gives raft, and what stores things for it, a logger that writes to slog.
// Raft's INFO lines are about its own workings, so they become debug messages here.
func HCLog(log *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Debug, Output: discard{}})
	l.RegisterSink(sink{log})
	return l
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

type sink struct{ log *slog.Logger }

// Accept implements hclog.SinkAdapter.
func (s sink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	out := slog.LevelDebug
	switch {
	case msg == "failed to decode incoming command" && closing(args): // the end of every connection
	case level >= hclog.Error:
		out = slog.LevelError
	case level == hclog.Warn:
		out = slog.LevelWarn
	}
	for i := range args {
		if f, ok := args[i].(hclog.Format); ok {
			args[i] = strings.TrimSpace(strings.Join(strings.Fields(hclogText(f)), " "))
		}
	}
	s.log.Log(context.Background(), out, msg, args...)
}

// closing reports whether an error is that of a transport that is being closed.
func closing(args []any) bool {
	for _, a := range args {
		if err, ok := a.(error); ok && errors.Is(err, raft.ErrTransportShutdown) {
			return true
		}
	}
	return false
}

func hclogText(f hclog.Format) string {
	if len(f) == 0 {
		return ""
	}
	text, _ := f[0].(string)
	return text
}
