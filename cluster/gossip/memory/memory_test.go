package memory

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

const a, b = "10.0.0.1:1", "10.0.0.2:1"

func pairOf(t *testing.T) (*Network, *Transport, *Transport) {
	t.Helper()
	n := New(1)
	return n, take(t, n, a), take(t, n, b)
}

func take(t *testing.T, n *Network, address string) *Transport {
	t.Helper()
	tr, err := n.Transport(address)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// got returns the packets that have arrived.
func got(tr *Transport) (out []string) {
	for {
		select {
		case p := <-tr.PacketCh():
			out = append(out, p.From.String()+" "+string(p.Buf))
		default:
			return out
		}
	}
}

func send(t *testing.T, from *Transport, to, text string) {
	t.Helper()
	buf := []byte(text)
	if _, err := from.WriteTo(buf, to); err != nil {
		t.Fatal(err)
	}
	clear(buf) // the sender may use it again
}

func want(t *testing.T, tr *Transport, packets ...string) {
	t.Helper()
	have := got(tr)
	if len(have) != len(packets) {
		t.Errorf("%s got %q, want %q", tr.address, have, packets)
		return
	}
	for i := range have {
		if have[i] != packets[i] {
			t.Errorf("%s got %q, want %q", tr.address, have, packets)
		}
	}
}

func TestPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, x, y := pairOf(t)
		send(t, x, b, "one")
		want(t, y, a+" one")
		n.Cut(a, b)
		send(t, x, b, "lost")
		send(t, y, a, "the other way")
		want(t, y)
		want(t, x, b+" the other way")
		n.Heal()
		n.Pause(b)
		send(t, x, b, "lost")
		send(t, y, a, "lost")
		n.Resume(b)
		want(t, x)
		want(t, y)
		n.SetDelay(func(from, _ string) time.Duration {
			if from == a {
				return time.Second
			}
			return 0
		})
		send(t, x, b, "late")
		send(t, y, a, "at once")
		want(t, x, b+" at once")
		want(t, y)
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, y, a+" late")
		send(t, x, b, "cut on its way")
		n.Cut(a, b)
		time.Sleep(2 * time.Second)
		want(t, y)
		n.Heal()
		n.SetDelay(nil)
		send(t, x, "10.0.0.9:1", "to nobody")
		if s := n.Stats(); s.Packets != 9 || s.Lost != 5 {
			t.Errorf("stats %+v", s)
		}
		for range 2 * packetBacklog {
			send(t, x, b, "many")
		}
		if have := len(got(y)); have != packetBacklog {
			t.Errorf("%d packets waited", have)
		}
	})
}

func TestLoss(t *testing.T) {
	n, x, y := pairOf(t)
	n.SetLoss(0.3)
	for range packetBacklog {
		send(t, x, b, "x")
	}
	if have := len(got(y)); have < packetBacklog/2 || have > packetBacklog*9/10 {
		t.Errorf("%d of %d packets came with a loss of 0.3", have, packetBacklog)
	}
}

func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, x, y := pairOf(t)
		open := func() (net.Conn, net.Conn) {
			t.Helper()
			c, err := x.DialTimeout(b, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			return c, <-y.StreamCh()
		}
		c, d := open()
		if c.RemoteAddr().String() != b || d.RemoteAddr().String() != a || c.LocalAddr().String() != a {
			t.Errorf("addresses %v %v", c.RemoteAddr(), d.RemoteAddr())
		}
		go func() { _, _ = c.Write([]byte("hello")) }()
		buf := make([]byte, 5)
		if _, err := io.ReadFull(d, buf); err != nil || string(buf) != "hello" {
			t.Errorf("%s, %v", buf, err)
		}
		broken := func(what string, c net.Conn) {
			t.Helper()
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := c.Read(buf); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: the stream is open (%v)", what, err)
			}
		}
		n.Cut(b, a) // one direction breaks a stream
		broken("cut", c)
		begin := time.Now()
		_, err := x.DialTimeout(b, time.Second)
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() || time.Since(begin) != time.Second {
			t.Errorf("dial across a cut: %v after %v", err, time.Since(begin))
		}
		n.Heal()
		c, d = open()
		n.Pause(b)
		broken("pause", d)
		n.Resume(b)
		c, d = open()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		broken("close", c)
		if len(n.mu.streams) != 0 {
			t.Errorf("%d streams are remembered", len(n.mu.streams))
		}
		c, _ = open()
		n.Kill(b)
		broken("kill", c)
		if _, err := x.DialTimeout(b, time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial to a dead process: %v", err)
		}
		if _, err := y.DialTimeout(a, time.Second); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a dead process dials: %v", err)
		}
		send(t, y, a, "from the dead")
		want(t, x)
	})
}

func TestAddresses(t *testing.T) {
	n, x, _ := pairOf(t)
	if _, err := n.Transport(a); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("taken: %v", err)
	}
	if _, err := n.Transport("nonsense"); err == nil {
		t.Error("nonsense is an address")
	}
	if ip, port, err := x.FinalAdvertiseAddr("", 0); err != nil || ip.String() != "10.0.0.1" || port != 1 {
		t.Errorf("%v:%d, %v", ip, port, err)
	}
	n.Kill(a)
	again := take(t, n, a)
	if err := errors.Join(x.Shutdown(), x.Shutdown()); err != nil { // must not take the successor away
		t.Error(err)
	}
	if _, err := n.Transport(a); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the successor's address: %v", err)
	}
	if err := again.Shutdown(); err != nil {
		t.Error(err)
	}
	take(t, n, a)
}

// A dial into a hole ends with its transport.
func TestShutdownEndsDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, x, _ := pairOf(t)
		n.Cut(a, b)
		done := make(chan error, 1)
		go func() {
			_, err := x.DialTimeout(b, time.Hour)
			done <- err
		}()
		synctest.Wait()
		if err := x.Shutdown(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		select {
		case err := <-done:
			if !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		default:
			t.Error("the dial goes on")
		}
	})
}
