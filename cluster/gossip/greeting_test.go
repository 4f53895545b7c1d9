package gossip

import (
	"bytes"
	"errors"
	"io"
	"net"
	"reflect"
	"testing"
	"time"
)

func someGreeting() greeting {
	a, b := someMeta(), someMeta()
	a.Name, b.ServerID = "a", "b"
	return greeting{label: "a label", time: time.Unix(1, 2), self: someMeta(), rivals: []rival{{"10.0.0.1:7946", a}, {"", b}}}
}

func TestGreeting(t *testing.T) {
	for _, key := range [][]byte{nil, keyA, keyB} {
		for _, answer := range []bool{false, true} {
			g := someGreeting()
			g.answer = answer
			raw, err := g.append(key)
			if err != nil {
				t.Fatal(err)
			}
			got, err := readGreeting(io.MultiReader(bytes.NewReader(raw), bytes.NewReader([]byte("what follows"))))
			if err != nil {
				t.Fatal(err)
			}
			if v := got.open(key); v != welcome {
				t.Fatalf("verdict %v", v)
			}
			if got.label != g.label || got.answer != answer || !got.time.Equal(g.time) || got.self != g.self || !reflect.DeepEqual(got.rivals, g.rivals) {
				t.Errorf("%+v became %+v", g, got)
			}
			// Nobody may change a sealed one, not even its header or its label.
			for i := 8; i < len(raw) && len(key) > 0; i++ {
				bad := bytes.Clone(raw)
				bad[i] ^= 4
				if g, err := readGreeting(bytes.NewReader(bad)); err == nil && g.open(key) == welcome {
					t.Fatalf("byte %d may be changed", i)
				}
			}
		}
	}
}

func TestGreetingVerdicts(t *testing.T) {
	for _, c := range []struct {
		theirs, ours []byte
		want         verdict
	}{{nil, nil, welcome}, {keyA, keyA, welcome}, {keyA, keyB, wrongKey}, {keyA, nil, hasNoKey}, {nil, keyA, needsKey}} {
		raw, err := someGreeting().append(c.theirs)
		if err != nil {
			t.Fatal(err)
		}
		g, err := readGreeting(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if got := g.open(c.ours); got != c.want {
			t.Errorf("%s opened with %s: %v, want %v", c.theirs, c.ours, got, c.want)
		}
	}
	for v := welcome; v <= numVerdicts; v++ {
		if v.String() == "" {
			t.Errorf("verdict %d has no name", v)
		}
	}
}

func FuzzGreeting(f *testing.F) {
	for _, key := range [][]byte{nil, keyA} {
		raw, err := someGreeting().append(key)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(greetingMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := readGreeting(bytes.NewReader(b))
		if err != nil {
			return
		}
		h := g
		h.open(keyA)
		if g.open(nil) == welcome && len(g.rivals) > maxRivals {
			t.Fatalf("%d rivals", len(g.rivals))
		}
	})
}

// A node whose port has just been opened may be greeted before Start has returned, as
// when all nodes of a cluster start at once: it says who it is.
func TestGreetedBeforeStarted(t *testing.T) {
	w := newWorld(t)
	cfg := w.config(1)
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		g.answer(far)
	}()
	ask, err := greeting{label: g.cfg.Label, time: time.Now(), self: w.config(2).Meta}.append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := near.Write(ask); err != nil {
		t.Fatal(err)
	}
	reply, err := readGreeting(near)
	if err != nil || reply.verdict != welcome || reply.open(nil) != welcome || reply.self.ServerID != cfg.Meta.ServerID {
		t.Errorf("answer %+v, %v; want one by %s", reply, err, cfg.Meta.ServerID)
	}
}

// Whatever comes on a stream, the node answers or closes, and goes on.
func TestStrangers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(2)
		stranger, err := w.net.Transport(addrOf(66))
		if err != nil {
			t.Fatal(err)
		}
		say := func(b []byte) (reply greeting, err error) {
			conn, err := stranger.DialTimeout(addrOf(1), time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			go func() { _, _ = conn.Write(b) }()
			return readGreeting(conn)
		}
		good, err := (greeting{label: "kvcluster", time: time.Now(), self: someMeta()}).append(nil)
		if err != nil {
			t.Fatal(err)
		}
		change := func(i int, to byte) []byte { b := bytes.Clone(good); b[i] = to; return b }
		if reply, err := say(good); err != nil || reply.open(nil) != welcome || reply.self.Name != "n1" {
			t.Errorf("a good one: %+v, %v", reply, err)
		}
		for name, c := range map[string]struct {
			raw  []byte
			want verdict
		}{
			"version":   {change(8, 2), otherVersion},
			"an answer": {change(10, flagAnswer), malformed},
			"end":       {change(len(good)-1, 0xff), malformed},
			"body":      {change(greetingHeader+len("kvcluster")+8, 77), malformed}, // so many nodes are not in it
			"verdict":   {change(9, 200), malformed},
		} {
			if reply, err := say(c.raw); err != nil || reply.verdict != c.want || !reply.answer {
				t.Errorf("%s: verdict %v, %v", name, reply.verdict, err)
			}
		}
		begin := time.Now()
		for _, raw := range [][]byte{nil, []byte("K"), good[:20], []byte("GET / HTTP/1.1\r\n\r\n"), {244}, {244, 200, 'x'}} {
			if _, err := say(raw); err == nil {
				t.Errorf("%q got an answer", raw)
			}
		}
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("strangers held streams for %v", took)
		}
		for range 300 { // more than may be pending
			conn, err := stranger.DialTimeout(addrOf(1), time.Second)
			if err == nil {
				defer conn.Close()
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		if reply, err := say(good); err != nil || reply.open(nil) != welcome {
			t.Errorf("a good one after all that: %+v, %v", reply, err)
		}
		if !w.allSee(2) {
			t.Error("n1 or n2 is gone")
		}
	})
}

// A conflict with somebody who lies about an address of this node itself, or of nobody,
// is none.
func TestConfirmAsksTheRival(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.start(1)
		w.start(2)
		own, _ := n.table.own()
		same := own
		same.ServerID = "another"
		for _, address := range []string{"", addrOf(1), addrOf(2), addrOf(9), "nonsense"} {
			if err := n.confirm(own, rival{address, same}); err != nil {
				t.Errorf("rival at %q: %v", address, err)
			}
		}
	})
}

func TestMuxStops(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		tr, err := w.net.Transport(addrOf(1))
		if err != nil {
			t.Fatal(err)
		}
		other, err := w.net.Transport(addrOf(2))
		if err != nil {
			t.Fatal(err)
		}
		m := newMux(tr, time.Hour, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		var conns []net.Conn
		for range 3 { // one says nothing, one greets for ever, one is for memberlist, which does not take it
			c, err := other.DialTimeout(addrOf(1), time.Second)
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		_, _ = conns[1].Write([]byte("K"))
		_, _ = conns[2].Write([]byte{1})
		time.Sleep(time.Second)
		begin := time.Now()
		if err := errors.Join(m.Shutdown(), m.Shutdown()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("stopping took %v", took)
		}
		for i, c := range conns {
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("stream %d is not closed: %v", i, err)
			}
		}
	})
}
