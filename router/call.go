package router

import (
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// call is one request being served. Calls are pooled with their buffers.
type call struct {
	router *Router
	route  *route
	w      http.ResponseWriter
	r      *http.Request
	req    *request // parsed body, nil before and on routes without one
	raw    []byte   // body bytes
	out    []byte   // answer under construction
	code   int      // answered with, 0 = nothing written yet
	model  string   // for the access log
	member string   // named in the path
	large  bool     // holds a token of Router.large
}

var unknownRoute = route{path: "unknown"}

// serve is the handler: it finds the route, and counts and logs whatever comes of it.
func (r *Router) serve(w http.ResponseWriter, req *http.Request) {
	r.running.Add(1)
	defer r.running.Done()
	start := time.Now()
	c, _ := r.calls.Get().(*call)
	if c == nil {
		c = &call{router: r}
	}
	c.w, c.r, c.code, c.model, c.member, c.req = w, req, 0, "", "", nil
	c.route = r.routes[req.URL.Path]
	if c.route == nil {
		c.route, c.member = r.memberRoute(req.URL.Path)
	}
	if c.route == nil {
		c.route = &r.metrics.unknown
	}
	finished := false
	defer func() {
		c.releaseLarge()
		if !finished { // a panic: the call's memory is not reused
			cause := recover()
			if cause == http.ErrAbortHandler {
				c.account(start)
				panic(cause)
			}
			r.log.Error("handler panicked", "path", c.route.path, "cause", cause, "stack", string(debug.Stack()))
			if c.code == 0 {
				c.writeAPIError(&apiError{status: http.StatusInternalServerError, text: "internal error"})
			}
			c.account(start)
			return
		}
		r.release(c)
	}()
	c.dispatch()
	c.account(start)
	finished = true
}

// dispatch runs the handler for the method. GET handlers serve HEAD too; net/http drops
// the body.
func (c *call) dispatch() {
	var handle func(*call) error
	switch c.r.Method {
	case http.MethodGet, http.MethodHead:
		handle = c.route.get
	case http.MethodPost:
		handle = c.route.post
	case http.MethodDelete:
		handle = c.route.delete
	}
	if handle != nil {
		if err := handle(c); err != nil {
			c.writeError(err)
		}
		return
	}
	if c.route.get == nil && c.route.post == nil && c.route.delete == nil {
		c.empty(http.StatusNotFound)
		return
	}
	var allow []string
	if c.route.get != nil {
		allow = append(allow, "GET", "HEAD")
	}
	if c.route.post != nil {
		allow = append(allow, "POST")
	}
	if c.route.delete != nil {
		allow = append(allow, "DELETE")
	}
	c.w.Header().Set("Allow", strings.Join(allow, ","))
	c.empty(http.StatusMethodNotAllowed)
}

// account puts the finished request into metrics and access log.
func (c *call) account(start time.Time) {
	took := time.Since(start)
	if !c.route.uncounted {
		c.route.stats.observe(c.r.Method, c.code, took)
	}
	c.router.access.record(c, start, took)
}

// release puts the memory of a call back for the next one.
func (r *Router) release(c *call) {
	if c.req != nil {
		r.bodies.Put(c.req)
	}
	c.w, c.r, c.req = nil, nil, nil
	r.calls.Put(c)
}

// json answers with a JSON body, which may be c.out.
func (c *call) json(status int, body []byte) { c.send(status, "application/json", body) }

// text answers with a plain text.
func (c *call) text(status int, body string) {
	c.send(status, "text/plain; charset=utf-8", []byte(body))
}

func (c *call) empty(status int) {
	c.code = status
	c.w.Header().Set("Content-Length", "0")
	c.w.WriteHeader(status)
}

func (c *call) send(status int, contentType string, body []byte) {
	c.code = status
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	c.w.Write(body) // an error means that the client is gone: nobody to tell
}

// ok answers with the body that every successful command has.
func (c *call) ok(status int) error {
	c.json(status, []byte(`{"status":"ok"}`))
	return nil
}
