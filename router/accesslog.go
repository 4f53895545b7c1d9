package router

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// accessLog writes one JSON object a line and request. A nil *accessLog is a log that
// is off.
type accessLog struct {
	path    string
	traceID string // header
	local   bool
	mu      struct {
		sync.Mutex
		file *os.File // nil until the first record or Open
		buf  []byte
		lost uint64 // records that could not be written
	}
}

func newAccessLog(cfg Config) *accessLog {
	if cfg.AccessLog == "" {
		return nil
	}
	return &accessLog{path: cfg.AccessLog, traceID: cfg.TraceIDHeader, local: cfg.AccessLogLocalTime}
}

// reopen opens the file by its path again, after a rotation has moved it away.
func (l *accessLog) reopen() error {
	if l == nil {
		return nil
	}
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("access log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.mu.file
	if l.mu.file = f; old != nil {
		return old.Close()
	}
	return nil
}

func (l *accessLog) close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.file == nil {
		return nil
	}
	err := l.mu.file.Close()
	l.mu.file = nil
	return err
}

// record writes the line of a finished request.
func (l *accessLog) record(c *call, start time.Time, took time.Duration) {
	if l == nil {
		return
	}
	end := start.Add(took).UTC()
	if l.local {
		end = end.Local()
	}
	trace, model := c.r.Header.Get(l.traceID), c.model
	if trace == "" {
		trace = "-"
	}
	if model == "" {
		model = "-"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.file == nil {
		l.mu.lost++
		return
	}
	b := append(l.mu.buf[:0], `{"ts":"`...)
	b = end.AppendFormat(b, "2006-01-02T15:04:05.000Z07:00")
	b = appendStringField(append(b, '"'), "trace_id", trace)
	b = appendStringField(b, "method", c.r.Method)
	b = appendStringField(b, "path", c.route.path)
	b = appendStringField(b, "model", model)
	b = appendUintField(b, "status", uint64(c.code))
	b = strconv.AppendFloat(appendKey(b, "duration_ms"), float64(took)/float64(time.Millisecond), 'f', 3, 64)
	l.mu.buf = append(b, "}\n"...)
	if _, err := l.mu.file.Write(l.mu.buf); err != nil {
		l.mu.lost++
	}
}

func (l *accessLog) lost() uint64 {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.lost
}

// reopenLogs serves POST /reopen_logs. It looks at no body.
func (c *call) reopenLogs() error {
	if err := c.router.access.reopen(); err != nil {
		return &apiError{status: http.StatusInternalServerError, text: err.Error()}
	}
	return c.ok(http.StatusOK)
}
