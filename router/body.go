package router

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/router/internal/wire"
)

const (
	formatJSON = iota
	formatMsgpack
	formatOther
)

// bodyFormat tells the format of a body from its content type.
func bodyFormat(contentType string) int {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return formatOther
	}
	sub, isApp := strings.CutPrefix(media, "application/")
	switch {
	case !isApp:
		return formatOther
	case sub == "json" || strings.HasSuffix(sub, "+json"):
		return formatJSON
	case sub == "msgpack" || sub == "x-msgpack" || sub == "vnd.msgpack":
		return formatMsgpack
	}
	return formatOther
}

// parse reads the body of the request, which must have the shape b, into c.req, and
// decides the dialect. msgpack is taken where the Mooncake conductor takes it.
func (c *call) parse(b body, msgpack bool) (*request, error) {
	format := bodyFormat(c.r.Header.Get("Content-Type"))
	if format == formatOther || format == formatMsgpack && !msgpack {
		return nil, &plainError{http.StatusUnsupportedMediaType, "expected a request with `Content-Type: application/json`"}
	}
	if err := c.readBody(); err != nil {
		return nil, err
	}
	q, _ := c.router.bodies.Get().(*request)
	if q == nil {
		q = &request{}
	}
	q.reset()
	q.msgpack = format == formatMsgpack
	c.req = q
	var v wire.Value
	if q.msgpack {
		v = wire.NewMsgpack(c.raw)
	} else {
		v = wire.NewJSON(c.raw)
	}
	if err := b.parse(v, q); err != nil {
		return nil, err
	}
	c.model = q.model()
	return q, q.resolve()
}

// largeBody is the size in bytes from which bodies are counted and bounded in number.
const largeBody = 256 << 10

// acquireLarge waits for the right to hold a large body.
func (c *call) acquireLarge() error {
	select {
	case c.router.large <- struct{}{}:
		c.large = true
		return nil
	default:
	}
	timer := time.NewTimer(c.router.cfg.QueueTimeout)
	defer timer.Stop()
	select {
	case c.router.large <- struct{}{}:
		c.large = true
		return nil
	case <-c.r.Context().Done():
	case <-timer.C:
	}
	return &apiError{status: http.StatusServiceUnavailable, text: "too many large requests at the same time, try again"}
}

func (c *call) releaseLarge() {
	if c.large {
		<-c.router.large
		c.large = false
	}
}

// readBody reads the whole body into c.raw.
func (c *call) readBody() error {
	limit := c.route.maxBody
	tooLarge := &plainError{http.StatusRequestEntityTooLarge, "request body is larger than the limit of this route"}
	if c.r.ContentLength > limit {
		return tooLarge
	}
	buf := c.raw[:0]
	if n := c.r.ContentLength; n > 0 && int64(cap(buf)) < n+1 {
		// What a header claims is not trusted with more than a step of memory at a time.
		buf = make([]byte, 0, min(n+1, 1<<20))
	}
	in := http.MaxBytesReader(c.w, c.r.Body, limit)
	for {
		if !c.large && len(buf) >= largeBody { // that many have come: a claim alone takes no place from others
			if err := c.acquireLarge(); err != nil {
				return err
			}
		}
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := in.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == nil {
			continue
		}
		c.raw = buf
		var large *http.MaxBytesError
		switch {
		case err == io.EOF:
			return nil
		case errors.As(err, &large):
			return tooLarge
		case errors.Is(err, os.ErrDeadlineExceeded):
			return &plainError{http.StatusRequestTimeout, "request body did not arrive in time"}
		}
		return &plainError{http.StatusBadRequest, "request body could not be read: " + err.Error()}
	}
}
