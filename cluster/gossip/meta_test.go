package gossip

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func someMeta() Meta {
	return Meta{Name: "node-1", ServerID: "0123456789abcdef0123456789abcdef", ClusterID: "9f1c", Boot: math.MaxUint64, Raft: "10.0.0.1:1",
		Link: "[2001:db8::1]:2", HTTP: "node-1.example:3", Zone: "z", Weight: 1.5, Version: "v1.2.3", Protocol: 7, Started: -5, HasData: true}
}

func TestMetaPack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(1, 20, 60)
		m := Meta{Name: text.Draw(t, "name"), ServerID: text.Draw(t, "id"), ClusterID: rapid.StringN(0, 20, 60).Draw(t, "cluster"),
			Boot: rapid.Uint64().Draw(t, "boot"), Raft: text.Draw(t, "raft"), Zone: rapid.StringN(0, 20, 60).Draw(t, "zone"),
			Weight: rapid.Float64Range(0, 1e9).Draw(t, "weight"), Protocol: rapid.IntRange(0, 1<<30).Draw(t, "protocol"),
			Started: rapid.Int64().Draw(t, "started"), HasData: rapid.Bool().Draw(t, "data")}
		raw, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range [][]byte{raw, append(bytes.Clone(raw), "of a later version"...)} {
			if got, err := UnpackMeta(b); err != nil || got != m {
				t.Fatalf("%+v became %+v (%v)", m, got, err)
			}
		}
		for n := range raw {
			if _, err := UnpackMeta(raw[:n]); !errors.Is(err, ErrMeta) {
				t.Fatalf("%d of %d bytes: %v", n, len(raw), err)
			}
		}
	})
}

func TestMetaLimits(t *testing.T) {
	m := someMeta()
	raw, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) > 200 {
		t.Errorf("an ordinary node takes %d bytes", len(raw))
	}
	// Exactly the limit fits, one more does not.
	m.Zone, m.Version = strings.Repeat("z", 200), ""
	raw, _ = m.Pack()
	m.Version = strings.Repeat("v", MetaMaxSize-len(raw))
	if raw, err = m.Pack(); err != nil || len(raw) != MetaMaxSize {
		t.Errorf("%d bytes: %v", len(raw), err)
	}
	m.Version += "v"
	if _, err := m.Pack(); !errors.Is(err, ErrTooLong) {
		t.Errorf("one byte more: %v", err)
	}
	m = someMeta()
	m.HTTP = strings.Repeat("h", 256)
	_, err = m.Pack()
	wantTold(t, err, ErrTooLong, "HTTP address", "256 bytes")
}

func TestMetaBad(t *testing.T) {
	for name, change := range map[string]func(*Meta, []byte) []byte{
		"version":   func(_ *Meta, b []byte) []byte { b[0] = 9; return b },
		"infinite":  func(m *Meta, _ []byte) []byte { m.Weight = math.Inf(1); b, _ := m.Pack(); return b },
		"not a num": func(m *Meta, _ []byte) []byte { m.Weight = math.NaN(); b, _ := m.Pack(); return b },
		"negative":  func(m *Meta, _ []byte) []byte { m.Weight = -1; b, _ := m.Pack(); return b },
		"no name":   func(m *Meta, _ []byte) []byte { m.Name = ""; b, _ := m.Pack(); return b },
		"no id":     func(m *Meta, _ []byte) []byte { m.ServerID = ""; b, _ := m.Pack(); return b },
		"protocol":  func(m *Meta, _ []byte) []byte { m.Protocol = math.MaxInt64; b, _ := m.Pack(); return b },
	} {
		m := someMeta()
		raw, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := UnpackMeta(change(&m, raw)); !errors.Is(err, ErrMeta) {
			t.Errorf("%s became %+v (%v)", name, got, err)
		}
	}
}

func FuzzUnpackMeta(f *testing.F) {
	raw, err := someMeta().Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte{metaVersion, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := UnpackMeta(b)
		if err != nil {
			return
		}
		raw, err := m.Pack()
		if errors.Is(err, ErrTooLong) && len(b) > MetaMaxSize {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, err := UnpackMeta(raw); err != nil || again != m {
			t.Fatalf("%+v became %+v (%v)", m, again, err)
		}
	})
}
