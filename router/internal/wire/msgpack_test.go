package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

func pack(t testing.TB, v any) []byte {
	t.Helper()
	b, err := msgpack.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMsgpackValues(t *testing.T) {
	for _, n := range []uint64{0, 1, 127, 128, 255, 256, 65535, 65536, 1<<32 - 1, 1 << 32, math.MaxInt64, math.MaxUint64} {
		if v, err := NewMsgpack(pack(t, n)).Uint(math.MaxUint64); v != n || err != nil {
			t.Errorf("%d: %d %v", n, v, err)
		}
		if id, err := NewMsgpack(pack(t, n)).ID(); id != fmt.Sprint(n) || err != nil {
			t.Errorf("%d: %q %v", n, id, err)
		}
	}
	for _, n := range []int64{0, -1, -32, -33, -128, -129, -32768, -32769, math.MinInt32, math.MinInt64, math.MaxInt64} {
		if v, err := NewMsgpack(pack(t, n)).Int(); v != n || err != nil {
			t.Errorf("%d: %d %v", n, v, err)
		}
		if got, err := NewMsgpack(pack(t, []int64{n})).Hashes(nil); err != nil || got[0] != uint64(n) {
			t.Errorf("hash %d: %v %v", n, got, err)
		}
	}
	for _, n := range []int{0, 1, 31, 32, 255, 256, 70000} {
		s := strings.Repeat("é", n)
		if v, err := NewMsgpack(pack(t, s)).String(); v != s || err != nil {
			t.Errorf("string of %d: %v", n, err)
		}
		list := make([]uint32, n)
		for i := range list {
			list[i] = uint32(i * 1000)
		}
		if v, err := NewMsgpack(pack(t, list)).Tokens(nil); !slices.Equal(v, list) || err != nil {
			t.Errorf("array of %d: %v", n, err)
		}
		var bin []byte
		for _, x := range list {
			bin = append(bin, byte(x), byte(x>>8), byte(x>>16), byte(x>>24))
		}
		if v, err := NewMsgpack(pack(t, bin)).Tokens(nil); n > 0 && (!slices.Equal(v, list) || err != nil) {
			t.Errorf("binary of %d: %v", n, err)
		}
	}
	for _, on := range []bool{true, false} {
		if v, err := NewMsgpack(pack(t, on)).Bool(); v != on || err != nil {
			t.Errorf("%v: %v %v", on, v, err)
		}
	}
}

func TestMsgpackFaults(t *testing.T) {
	for name, c := range map[string]struct {
		body  string
		shape bool
		index int
	}{
		"empty": {"", false, -1}, "never used byte": {"\xc1", false, -1}, "text": {"\xa1x", true, -1}, "map": {"\x80", true, -1},
		"nil": {"\xc0", true, -1}, "length bomb": {"\xdd\xff\xff\xff\xff", false, -1}, "binary bomb": {"\xc6\xff\xff\xff\xff", false, -1},
		"cut": {"\x92\x01", false, -1}, "negative": {"\x92\x01\xff", true, 1}, "float": {"\x91\xca\x00\x00\x00\x00", true, 0},
		"too large": {"\x91\xcf\x00\x00\x00\x01\x00\x00\x00\x00", true, 0}, "odd binary": {"\xc4\x03abc", true, -1},
		"negative in binary": {"\xc4\x08\x01\x00\x00\x00\xff\xff\xff\xff", true, 1},
	} {
		_, err := NewMsgpack([]byte(c.body)).Tokens(nil)
		var e *Error
		if !errors.As(err, &e) || e.Shape != c.shape || e.Index != c.index {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := NewMsgpack([]byte(strings.Repeat("\x91", 1<<20))).Skip(); err == nil || !strings.Contains(err.Error(), "recursion") {
		t.Errorf("deep nesting: %v", err)
	}
	if _, err := NewMsgpack([]byte("\xa1\xff")).String(); err == nil {
		t.Error("string that is not UTF-8 taken")
	}
	if err := NewMsgpack([]byte("\x81\x01\x02")).Object(func([]byte) error { return nil }); err == nil {
		t.Error("integer key taken")
	}
	m := NewMsgpack([]byte("\x01\x02"))
	if _, err := m.Uint(9); err != nil || m.End() == nil {
		t.Error("trailing byte taken")
	}
}

// Whatever the bytes are, the walker agrees with the library on whether a value is
// there and where it ends, and never runs away.
func FuzzMsgpack(f *testing.F) {
	f.Add(pack(f, map[string]any{"model": "m", "token_ids": []int{1, 2, 300, 70000}, "x": []any{nil, true, 1.5, []byte{1}}}))
	f.Add([]byte("\xdf\xff\xff\xff\xff"))
	f.Add([]byte("\xc7\x02\x01ab"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return
		}
		m := NewMsgpack(data)
		err := m.Skip()
		in := bytes.NewReader(data)
		libErr := msgpack.NewDecoder(in).Skip()
		if end := len(data) - in.Len(); (err == nil) != (libErr == nil) || err == nil && m.pos != end {
			if err == nil || !strings.Contains(err.Error(), "recursion") {
				t.Fatalf("%x: %v at %d, library %v at %d", data, err, m.pos, libErr, end)
			}
		}
		var ids []uint32
		if err != nil || msgpack.Unmarshal(data, &ids) != nil {
			return
		}
		if got, err := NewMsgpack(data).Tokens(nil); err == nil && data[0] != 0xc4 && data[0] != 0xc5 && data[0] != 0xc6 && !slices.Equal(got, ids) {
			t.Fatalf("%x: %v, library %v", data, got, ids)
		}
	})
}
