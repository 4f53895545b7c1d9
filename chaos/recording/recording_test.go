package recording

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/memory"
)

var base = time.Unix(1757500000, 250)

// sameBytes compares payloads of megabytes without looking for their differences.
var sameBytes = cmp.Comparer(bytes.Equal)

// sample is a recording of three batches.
func sample(t testing.TB) ([]byte, []Frame) {
	t.Helper()
	frames := []Frame{
		{At: 5 * time.Millisecond, Sequence: 0, Topic: "kv@a@m", Payload: []byte("first")},
		{At: 105 * time.Millisecond, Sequence: 1<<63 + 7, Payload: []byte{}},
		{At: 1005 * time.Millisecond, Sequence: 9, Topic: "x", Payload: bytes.Repeat([]byte{0xab}, 3<<20)},
	}
	var b bytes.Buffer
	w, err := NewWriter(&b, base)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if err := w.Write(base.Add(f.At), f.Sequence, f.Topic, f.Payload); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), frames
}

// readAll reads until an error; io.EOF is the good one.
func readAll(b []byte) (out []Frame, err error) {
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	for {
		f, err := r.Next()
		if err != nil {
			return out, err
		}
		f.Payload = bytes.Clone(f.Payload)
		out = append(out, f)
	}
}

func TestWriteReadsBack(t *testing.T) {
	b, want := sample(t)
	got, err := readAll(b)
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, sameBytes); d != "" {
		t.Errorf("frames (-want +got):\n%s", d)
	}
	r, err := NewReader(bytes.NewReader(b))
	if err != nil || !r.Base().Equal(base) {
		t.Errorf("base %v, %v", r.Base(), err)
	}
}

// The bytes of the format, so that a change of it cannot go unnoticed.
func TestBytes(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b, time.Unix(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(time.Unix(0, 3), 4, "t", []byte("p")); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	head := []byte("kvc-rec\n\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00")
	body := []byte("\x02\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x01\x00tp")
	sum := func(b []byte) []byte {
		return binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	}
	want := bytes.Join([][]byte{head, sum(head), {20, 0, 0, 0}, sum(body), body}, nil)
	if d := cmp.Diff(want, b.Bytes()); d != "" {
		t.Errorf("bytes (-want +got):\n%s", d)
	}
}

// Times never fall, even if the clock does.
func TestClockSetBack(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b, base)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []time.Duration{10, -5, 7, 20} {
		if err := w.Write(base.Add(at), 0, "", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	frames, _ := readAll(b.Bytes())
	var at []time.Duration
	for _, f := range frames {
		at = append(at, f.At)
	}
	if d := cmp.Diff([]time.Duration{10, 10, 10, 20}, at); d != "" {
		t.Errorf("times (-want +got):\n%s", d)
	}
}

// Cut anywhere and with any bit flipped, a file is never read as something else.
func TestDamage(t *testing.T) {
	b, want := sample(t)
	b = b[:len(b)-3<<20+40] // the last payload is long: most of it says nothing new
	for cut := range len(b) {
		got, err := readAll(b[:cut])
		switch {
		case cut < headerSize:
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			continue
		case errors.Is(err, io.EOF), errors.Is(err, ErrTruncated):
		default:
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if d := cmp.Diff(want[:len(got)], append([]Frame{}, got...), sameBytes); d != "" {
			t.Fatalf("cut at %d (-want +got):\n%s", cut, d)
		}
	}
	whole := b[:headerSize+8+bodyFixed+len("kv@a@m")+len("first")]
	for bit := range 8 * len(whole) {
		d := bytes.Clone(whole)
		d[bit/8] ^= 1 << (bit % 8)
		got, err := readAll(d)
		if len(got) != 0 || errors.Is(err, io.EOF) {
			t.Fatalf("bit %d flipped: %d frames, %v", bit, len(got), err)
		}
		if !errors.Is(err, ErrFormat) && !errors.Is(err, ErrChecksum) && !errors.Is(err, ErrTruncated) {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
	}
}

func TestNewerVersion(t *testing.T) {
	b, _ := sample(t)
	b[8] = 2
	binary.LittleEndian.PutUint32(b[20:], crc32.Checksum(b[:20], castagnoli))
	if _, err := NewReader(bytes.NewReader(b)); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("error %v", err)
	}
}

type brokenDisk struct{ left int }

func (d *brokenDisk) Write(p []byte) (int, error) {
	if d.left -= len(p); d.left < 0 {
		return 0, errors.New("disk full")
	}
	return len(p), nil
}

func TestWriteErrorsStay(t *testing.T) {
	w, err := NewWriter(&brokenDisk{left: 100}, base)
	if err != nil {
		t.Fatal(err)
	}
	var first error
	for range 3 {
		if err := w.Write(base, 3, "", make([]byte, 1<<16)); err != nil && first == nil {
			first = err
		}
	}
	if first == nil || !strings.Contains(first.Error(), "disk full") || !errors.Is(w.Flush(), first) {
		t.Errorf("first error %v, at the end %v", first, w.Flush())
	}
	if err := w.Write(base, 1, strings.Repeat("t", 1<<16), nil); err == nil {
		t.Error("a topic of 65,536 bytes was written")
	}
}

// FuzzReader: no input makes the reader fail in another way than by its errors.
func FuzzReader(f *testing.F) {
	b, _ := sample(f)
	f.Add(b[:200])
	f.Add(b[:headerSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := readAll(b)
		for _, is := range []error{io.EOF, ErrFormat, ErrChecksum, ErrTruncated} {
			if errors.Is(err, is) {
				return
			}
		}
		t.Errorf("error %v", err)
	})
}

// A player publishes at the recorded times what a capture then records again.
func TestPlayAndCapture(t *testing.T) {
	b, want := sample(t)
	path := filepath.Join(t.TempDir(), "a.rec")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cfg  PlayerConfig
		took time.Duration
	}{
		"recorded times": {PlayerConfig{Speedup: 1}, time.Second},
		"ten times":      {PlayerConfig{Speedup: 10}, 100 * time.Millisecond},
		"rate":           {PlayerConfig{Rate: 4}, 500 * time.Millisecond},
		"default rate":   {PlayerConfig{}, time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			net := memory.New(memory.Config{})
			c.cfg.Path, c.cfg.Endpoint, c.cfg.Settle = path, "tcp://127.0.0.1:0", time.Second
			p, err := NewPlayer(c.cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Open(net); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			rec, err := NewCapture(&out, CaptureConfig{Subscribe: transport.SubscribeConfig{Endpoint: p.Endpoint()}, Batches: 3})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- rec.Run(t.Context(), net) }()
			if err := p.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			got, err := readAll(out.Bytes())
			if !errors.Is(err, io.EOF) || len(got) != 3 {
				t.Fatalf("%s: %d frames, %v", name, len(got), err)
			}
			if took := got[2].At - got[0].At; took != c.took {
				t.Errorf("%s: played in %s, want %s", name, took, c.took)
			}
			for i := range got {
				got[i].At = want[i].At
			}
			if d := cmp.Diff(want, got, sameBytes); d != "" {
				t.Errorf("%s: frames (-want +got):\n%s", name, d)
			}
			if s := rec.Stats(); s.Batches != 3 || s.Gaps != 2 || s.Connects != 1 || s.Bytes != p.Stats().Bytes || s.Skipped != 0 {
				t.Errorf("%s: capture %+v, player %+v", name, s, p.Stats())
			}
		})
	}
}

// A capture skips what is no batch and ends with its context.
func TestCaptureGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memory.New(memory.Config{})
		pub, err := net.NewPublisher(transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:7000"})
		if err != nil {
			t.Fatal(err)
		}
		defer pub.Close()
		var out bytes.Buffer
		rec, err := NewCapture(&out, CaptureConfig{Subscribe: transport.SubscribeConfig{Endpoint: "tcp://127.0.0.1:7000"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- rec.Run(ctx, net) }()
		time.Sleep(time.Second)
		for _, err := range []error{
			pub.SendRaw([]byte("garbage")), pub.Publish("", 4, []byte("p")), pub.SendRaw(nil, []byte("short"), nil), pub.Publish("", 5, []byte("q")),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if s := rec.Stats(); s.Batches != 2 || s.Skipped != 2 || s.Gaps != 0 {
			t.Errorf("stats %+v", s)
		}
		if got, err := readAll(out.Bytes()); len(got) != 2 || !errors.Is(err, io.EOF) {
			t.Errorf("%d frames, %v", len(got), err)
		}
	})
}

func TestPlayerErrors(t *testing.T) {
	for part, c := range map[string]PlayerConfig{
		"no file":     {Endpoint: "tcp://x:1"},
		"no endpoint": {Path: "x"},
		"speed-up":    {Path: "x", Endpoint: "tcp://x:1", Speedup: -1},
		"exclude":     {Path: "x", Endpoint: "tcp://x:1", Speedup: 1, Rate: 1},
		"rate is":     {Path: "x", Endpoint: "tcp://x:1", Rate: -1},
		"settle":      {Path: "x", Endpoint: "tcp://x:1", Settle: -1},
	} {
		if _, err := NewPlayer(c); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", part, err)
		}
	}
	if _, err := NewCapture(io.Discard, CaptureConfig{}); !errors.Is(err, ErrConfig) {
		t.Errorf("capture without an endpoint: %v", err)
	}
	run := func(path string) error {
		p, err := NewPlayer(PlayerConfig{Path: path, Endpoint: "tcp://127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); !errors.Is(err, ErrState) {
			t.Errorf("run before open: %v", err)
		}
		if err := p.Open(memory.New(memory.Config{})); err != nil {
			t.Fatal(err)
		}
		if err := p.Open(memory.New(memory.Config{})); !errors.Is(err, ErrState) {
			t.Errorf("open twice: %v", err)
		}
		return p.Run(t.Context())
	}
	dir := t.TempDir()
	if err := run(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	b, _ := sample(t)
	cut := filepath.Join(dir, "cut")
	if err := os.WriteFile(cut, b[:len(b)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(cut); !errors.Is(err, ErrTruncated) || !strings.Contains(err.Error(), "frame 2") {
		t.Errorf("a file that was cut: %v", err)
	}
}
