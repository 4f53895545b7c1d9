package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// The next node is asked when one does not answer, and asked first from then on; an
// answer with an error status is an answer.
func TestNextNode(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	l.Close()
	asked := 0
	live := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.URL.Path == "/missing" {
			http.Error(w, `{"error":"no such thing"}`, http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(`{"method":"` + r.Method + `"}`))
	}))
	defer live.Close()
	c, err := New(gone+","+live.URL, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var out struct{ Method string }
	if err := c.Post(context.Background(), "/x", map[string]int{}, &out); err != nil || out.Method != "POST" {
		t.Fatalf("%v, %+v", err, out)
	}
	if c.Base() != live.URL {
		t.Errorf("stays at %s", c.Base())
	}
	if err := c.Get(context.Background(), "/missing", nil, nil); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("%v", err)
	}
	if asked != 2 {
		t.Errorf("asked %d times, want 2", asked)
	}
	nobody, err := New(gone+", "+gone, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := nobody.Delete(context.Background(), "/x", nil); !errors.Is(err, ErrNoServer) {
		t.Errorf("%v", err)
	}
	if _, err := New("http://a, ::", time.Second); err == nil {
		t.Error("a broken second address was taken")
	}
}

// What a connection without an answer means is said, whatever way there is none.
func TestNoAnswer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	rude, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer rude.Close()
	go func() {
		for {
			c, err := rude.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for address, want := range map[string]string{
		silent.Addr().String(): "within 50ms", rude.Addr().String(): "is that the HTTP address", gone.Addr().String(): "start one with",
	} {
		c, err := New(address, 50*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Post(context.Background(), "/x", map[string]int{}, nil); !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
