package router

import (
	"context"
	"errors"
	"net/http"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/router/internal/wire"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// apiError is an answer of a handler: JSON, {"error": text}.
type apiError struct {
	status int
	text   string
	field  string // for Mooncake clients: the field at fault
	index  int    // and the element of it plus one, 0 = none
}

func (e *apiError) Error() string { return e.text }

// shapeError is a body that is well-formed and lacks something: 422 in plain text, as
// the framework of Dynamo's server answers before its handlers run.
type shapeError struct{ text string }

func (e *shapeError) Error() string { return e.text }

// plainError is any other answer that is plain text.
type plainError struct {
	status int
	text   string
}

func (e *plainError) Error() string { return e.text }

// writeError answers with an error. A cluster's error becomes a status by its sentinel
// and keeps its text, which is part of the contract.
func (c *call) writeError(err error) {
	var (
		api   *apiError
		plain *plainError
		shape *shapeError
		body  *wire.Error
	)
	switch {
	case errors.As(err, &api):
		c.writeAPIError(api)
	case errors.As(err, &plain):
		c.text(plain.status, plain.text)
	case c.req != nil && c.req.msgpack && (errors.As(err, &shape) || errors.As(err, &body)):
		c.writeMsgpackFault(err, body)
	case errors.As(err, &shape):
		c.text(http.StatusUnprocessableEntity, "JSON body of the wrong shape: "+err.Error())
	case errors.As(err, &body) && body.Shape:
		c.text(http.StatusUnprocessableEntity, "JSON body of the wrong shape: "+err.Error())
	case errors.As(err, &body):
		c.text(http.StatusBadRequest, "body is not JSON: "+err.Error())
	case errors.Is(err, catalog.ErrConflict):
		c.writeAPIError(&apiError{status: http.StatusConflict, text: err.Error()})
	case errors.Is(err, catalog.ErrNotFound):
		c.writeAPIError(&apiError{status: http.StatusNotFound, text: err.Error()})
	case errors.Is(err, catalog.ErrInvalid), errors.Is(err, catalog.ErrEndpoint):
		c.writeAPIError(&apiError{status: http.StatusBadRequest, text: err.Error()})
	case errors.Is(err, ErrUnavailable), errors.Is(err, catalog.ErrExhausted), errors.Is(err, indexer.ErrClosed),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		c.w.Header().Set("Retry-After", "1")
		c.writeAPIError(&apiError{status: http.StatusServiceUnavailable, text: err.Error()})
	default:
		c.router.log.Error("request failed", "path", c.route.path, "error", err)
		c.writeAPIError(&apiError{status: http.StatusInternalServerError, text: err.Error()})
	}
}

func (c *call) writeAPIError(e *apiError) {
	b := append(c.out[:0], `{"error":`...)
	b = appendString(b, e.text)
	if c.req != nil && c.req.dialect.mooncake() {
		b = append(b, `,"reason":`...)
		b = appendString(b, e.text)
		if e.field != "" {
			b = append(b, `,"field":`...)
			b = appendString(b, e.field)
		}
	}
	c.out = append(b, '}')
	if c.req != nil && c.req.msgpack {
		c.writeReason(e.status, e.text, e.field, e.index)
		return
	}
	c.json(e.status, c.out)
}

// writeMsgpackFault answers a Mooncake client's malformed body: plain text where that
// conductor answers so, else reason, field and index.
func (c *call) writeMsgpackFault(err error, body *wire.Error) {
	if c.route.path == "/register" || c.route.path == "/unregister" {
		c.text(http.StatusBadRequest, "bad msgpack body: "+err.Error())
		return
	}
	name, index := "", 0
	var f *fieldError
	if errors.As(err, &f) {
		name = f.field
	}
	if body != nil {
		index = body.Index + 1
	}
	c.writeReason(http.StatusBadRequest, err.Error(), name, index)
}
