// Package client talks to a node over HTTP. It is what the command line uses; it
// knows the routes of the HTTP contract and turns failures into sentences.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Errors that commands turn into exit codes.
var (
	// ErrNoServer: nothing answers at the address.
	ErrNoServer = errors.New("no node answers")
	// ErrNotFound: the node answered 404.
	ErrNotFound = errors.New("not found")
	// ErrBadRequest: the node answered 400 or 422: what was asked can never be right.
	ErrBadRequest = errors.New("bad request")
	// ErrRefused: the node answered with another error status.
	ErrRefused = errors.New("the node refused")
)

// Client calls a node; given several of one cluster it goes on to the next when one does
// not answer, and stays there. Safe for concurrent use.
type Client struct {
	bases []string
	at    atomic.Uint32 // the one in use
	http  *http.Client
}

// New returns a client for a base URL such as http://127.0.0.1:8090, or for several with
// commas between them; a missing scheme means http.
func New(server string, timeout time.Duration) (*Client, error) {
	c := &Client{http: &http.Client{Timeout: timeout}}
	for _, s := range strings.Split(server, ",") {
		s = strings.TrimSpace(s)
		if !strings.Contains(s, "://") {
			s = "http://" + s
		}
		u, err := url.Parse(s)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("server address %q is not a URL like http://127.0.0.1:8090", s)
		}
		c.bases = append(c.bases, strings.TrimRight(u.String(), "/"))
	}
	return c, nil
}

// Base returns the URL of the node in use.
func (c *Client) Base() string { return c.bases[int(c.at.Load())%len(c.bases)] }

// Get fetches path with query parameters; empty values are left out.
func (c *Client) Get(ctx context.Context, path string, query url.Values, out any) error {
	q := url.Values{}
	for k, vs := range query {
		for _, v := range vs {
			if v != "" {
				q.Add(k, v)
			}
		}
	}
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	return c.do(ctx, http.MethodGet, path, "", nil, out)
}

// Post sends body as JSON.
func (c *Client) Post(ctx context.Context, path string, body, out any) error {
	return c.PostAccept(ctx, path, "application/json", body, out)
}

// PostAccept sends body as JSON and asks for an answer of a media type; out is then
// usually a *[]byte.
func (c *Client) PostAccept(ctx context.Context, path, accept string, body, out any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.do(ctx, http.MethodPost, path, accept, raw, out)
}

// Delete asks for something to go.
func (c *Client) Delete(ctx context.Context, path string, out any) error {
	return c.do(ctx, http.MethodDelete, path, "", nil, out)
}

// do sends the request to the node in use and, when nothing answers there, to the
// others. A request that was answered is never sent again. out may be nil, a *[]byte
// for the raw body, or anything that encoding/json can fill.
func (c *Client) do(ctx context.Context, method, path, accept string, body []byte, out any) error {
	var failed []error
	for range c.bases {
		at := c.at.Load()
		err := c.once(ctx, c.Base(), method, path, accept, body, out)
		if !errors.Is(err, ErrNoServer) {
			return err
		}
		failed = append(failed, err)
		c.at.CompareAndSwap(at, at+1)
	}
	return errors.Join(failed...)
}

func (c *Client) once(ctx context.Context, base, method, path, accept string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctxErr := req.Context().Err(); ctxErr != nil {
			return ctxErr
		}
		return noServer(base, errors.Unwrap(err), c.http.Timeout)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", req.URL.Path, err)
	}
	if resp.StatusCode/100 != 2 {
		return statusError(resp.StatusCode, raw)
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *[]byte:
		*out = raw
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("the answer of %s is not the JSON that was expected: %w", req.URL.Path, err)
	}
	return nil
}

// noServer says what a connection without an answer means.
func noServer(base string, err error, timeout time.Duration) error {
	var late net.Error
	switch {
	case errors.As(err, &late) && late.Timeout():
		return fmt.Errorf("%w at %s within %v: what listens there is stuck or is no node, or nothing gets through (--timeout waits longer)", ErrNoServer, base, timeout)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w at %s: %w (start one with: kvcluster serve; one that is starting answers soon)", ErrNoServer, base, err)
	}
	return fmt.Errorf("%w at %s: %w (is that the HTTP address of a node?)", ErrNoServer, base, err)
}

func statusError(code int, body []byte) error {
	var e struct{ Error string }
	text := strings.TrimSpace(string(body))
	if json.Unmarshal(body, &e) == nil && e.Error != "" {
		text = e.Error
	}
	if text == "" {
		text = http.StatusText(code)
	}
	kind := ErrRefused
	switch code {
	case http.StatusNotFound:
		kind = ErrNotFound
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		kind = ErrBadRequest
	}
	return &Error{Status: code, Text: text, kind: kind}
}

// Error is an answer with an error status.
type Error struct {
	Status int
	Text   string
	kind   error
}

// Error returns what the node said, with the status.
func (e *Error) Error() string { return fmt.Sprintf("%s (HTTP %d)", e.Text, e.Status) }

// Unwrap returns ErrNotFound, ErrBadRequest or ErrRefused.
func (e *Error) Unwrap() error { return e.kind }
