package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTokens(t *testing.T) {
	good := map[string][]uint32{
		`[]`: {}, `[ ]`: {}, `[0]`: {0}, `[7]`: {7}, `[1,2,3]`: {1, 2, 3}, `[1, 2, 3]`: {1, 2, 3}, " [\n1 ,\t2\r\n, 3 ] ": {1, 2, 3},
		`[9999999]`: {9999999}, `[10000000]`: {10000000}, `[4294967295]`: {4294967295}, `[4294967295,0,12345678,1]`: {4294967295, 0, 12345678, 1},
		`[1,  2]`: {1, 2}, `[0,0,0,0,0,0,0,0,0,0]`: {0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	}
	for text, want := range good {
		j := NewJSON([]byte(text))
		got, err := j.Tokens(nil)
		if err == nil {
			err = j.End()
		}
		if err != nil || !slices.Equal(got, want) || j.depth != 0 {
			t.Errorf("%s: %v %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]struct {
		shape bool
		index int
		at    string
	}{
		`[1,2`: {false, -1, "column 5"}, `[`: {false, -1, "column 2"}, `[1,`: {false, -1, "column 4"}, `[1 2]`: {false, -1, "column 4"},
		`[01]`: {false, 0, "column 2"}, `[1,-]`: {false, 1, "column 4"}, `[1,]`: {false, 1, "column 4"}, `[,1]`: {false, 0, "column 2"},
		`[-1]`: {true, 0, "column 2"}, `[1,2,-0]`: {true, 2, "column 6"}, `[4294967296]`: {true, 0, "column 2"}, `[99999999999]`: {true, 0, "column 2"},
		`[1.5]`: {true, 0, "column 2"}, `[1.]`: {false, 0, "column 2"}, `[1e5]`: {true, 0, "column 2"}, `[1e]`: {false, 0, "column 2"},
		`[null]`: {true, 0, "column 2"}, `["1"]`: {true, 0, "column 2"}, `[[1]]`: {true, 0, "column 2"}, `[{}]`: {true, 0, "column 2"},
		`[nul]`: {false, 0, "column 2"}, "[1,\n2,\n x]": {false, 2, "line 3 column 2"}, `{}`: {true, -1, "column 1"}, `null`: {true, -1, "column 1"},
		`1`: {true, -1, "column 1"}, ``: {false, -1, "column 1"}, `[1,2a]`: {false, -1, "column 5"}, "[1\x00]": {false, -1, "column 3"},
		"[1\xff]": {false, -1, "column 3"}, `[12345678901234567890123]`: {true, 0, "column 2"},
	} {
		_, err := NewJSON([]byte(text)).Tokens(nil)
		var e *Error
		if !errors.As(err, &e) || e.Shape != want.shape || e.Index != want.index || !strings.HasSuffix(e.At, want.at) {
			t.Errorf("%q: %+v, want %+v", text, err, want)
		}
	}
}

// Every number of digits in every position relative to the end of the text.
func TestTokensAgainstStandard(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 300 {
		want := make([]uint32, n)
		var b strings.Builder
		for i := range want {
			want[i] = uint32(r.Uint64() >> (32 + r.UintN(32)))
			if b.WriteString(strconv.Itoa(int(want[i]))); i+1 < n {
				b.WriteString([]string{",", ", ", " ,", ",\n"}[r.UintN(4)])
			}
		}
		text := "[" + b.String() + "]"
		got, err := NewJSON([]byte(text)).Tokens(nil)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%s: %v %v", text, got, err)
		}
	}
}

func TestLeadingDigits(t *testing.T) {
	for n := 1; n < 8; n++ {
		for _, digits := range []string{"00000000", "99999999", "12345678", "90807060"} {
			for c := range 256 {
				if c >= '0' && c <= '9' {
					continue
				}
				text := digits[:n] + string([]byte{byte(c)}) + "56789012"
				var word uint64
				for i := range 8 {
					word |= uint64(text[i]) << (8 * i)
				}
				want, _ := strconv.Atoi(digits[:n])
				if v, got := leadingDigits(word); got != n || v != uint32(want) {
					t.Fatalf("%q: %d digits, %d", text[:8], got, v)
				}
			}
		}
	}
}

func TestHashes(t *testing.T) {
	got, err := NewJSON([]byte(`[0, -1,18446744073709551615 ,-9223372036854775808,9223372036854775807]`)).Hashes(nil)
	if want := []uint64{0, math.MaxUint64, math.MaxUint64, 1 << 63, math.MaxInt64}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %v", got, err)
	}
	for _, text := range []string{`[18446744073709551616]`, `[-9223372036854775809]`, `[1.0]`, `[-0]`, `[""]`, `[true]`, `{}`} {
		_, err := NewJSON([]byte(text)).Hashes(nil)
		var e *Error
		if !errors.As(err, &e) || !e.Shape {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestNesting(t *testing.T) {
	for depth, ok := range map[int]bool{MaxDepth: true, MaxDepth + 1: false, 1_000_000: false} {
		for _, brackets := range []string{"[]", "{}"} {
			text := strings.Repeat("[", depth) + strings.Repeat("]", depth)
			if brackets == "{}" {
				text = strings.Repeat(`{"a":`, depth-1) + "{}" + strings.Repeat("}", depth-1)
			}
			if err := NewJSON([]byte(text)).Skip(); (err == nil) != ok {
				t.Errorf("depth %d of %s: %v", depth, brackets, err)
			}
		}
	}
}

// After a fault of shape the position can be restored and the value passed over.
func TestResetAfterShapeError(t *testing.T) {
	j := NewJSON([]byte(`{"a":[1,[2]],"b":3}`))
	var b uint64
	err := j.Object(func(key []byte) error {
		if string(key) == "b" {
			var err error
			b, err = j.Uint(9)
			return err
		}
		mark := j.Mark()
		if _, err := j.Tokens(nil); err == nil {
			t.Error("nested array taken")
		}
		j.Reset(mark)
		return j.Skip()
	})
	if err != nil || b != 3 || j.depth != 0 {
		t.Errorf("b=%d depth=%d %v", b, j.depth, err)
	}
}

// decodeAll reads any value with the walker into what encoding/json would make of it,
// with numbers as texts.
func decodeAll(j *JSON) (any, error) {
	switch j.peek() {
	case '{':
		m := map[string]any{}
		err := j.Object(func(key []byte) error {
			k := string(key)
			v, err := decodeAll(j)
			m[k] = v
			return err
		})
		return m, err
	case '[':
		list := []any{}
		done, err := j.beginArray()
		for more := !done && err == nil; more && err == nil; {
			var v any
			if v, err = decodeAll(j); err == nil {
				list = append(list, v)
				more, err = j.nextElement()
			}
		}
		return list, err
	case '"':
		return j.String()
	case 't', 'f':
		return j.Bool()
	case 'n':
		if j.Null() {
			return nil, nil
		}
	default:
		text, _, err := j.number("")
		return json.Number(text), err
	}
	return nil, j.Skip()
}

// strict reports whether encoding/json takes more than it should: it replaces bytes that
// are not UTF-8 and lone surrogates.
func strict(data []byte) bool {
	if !utf8.Valid(data) {
		return false
	}
	var v any
	if json.Unmarshal(data, &v) != nil {
		return true
	}
	again, err := json.Marshal(v)
	return err == nil && !bytes.Contains(again, []byte(`\ufffd`)) && !bytes.Contains(again, []byte("\uFFFD"))
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{
		`{"token_ids":[1,22,333,4444],"model_name":"m"}`, `[1.5e-3,-0,0]`, `"\u00e9\ud83d\ude00\n"`, `{"a":{"b":[null,true,false]}}`,
		` [ 1 , 2 ] `, `{"a":1,"a":2}`, `"\ud800"`, "\"\xff\"", `[12345678,123456789,4294967295]`, `{"":""}`, `nul`, `-`, `1 2`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want any
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()
		wantErr := dec.Decode(&want)
		if wantErr == nil && len(bytes.Trim(data[dec.InputOffset():], " \t\r\n")) > 0 {
			wantErr = errors.New("trailing")
		}
		j := NewJSON(data)
		got, err := decodeAll(j)
		if err == nil {
			err = j.End()
		}
		skip := NewJSON(data)
		skipErr := skip.Skip()
		if skipErr == nil {
			skipErr = skip.End()
		}
		if (skipErr == nil) != (err == nil) {
			t.Fatalf("%q: read %v, skipped %v", data, err, skipErr)
		}
		if wantErr != nil && err == nil {
			t.Fatalf("%q: taken, encoding/json says %v", data, wantErr)
		}
		if wantErr == nil && err != nil {
			if strict(data) && !strings.Contains(err.Error(), "recursion") {
				t.Fatalf("%q: %v, encoding/json takes it", data, err)
			}
			return
		}
		if err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%q: %v, want %v", data, got, want)
		}
	})
}

func FuzzTokens(f *testing.F) {
	for _, s := range []string{`[1,22,333]`, `[1, 22, 333 ]`, `[4294967295]`, `[4294967296]`, `[01]`, `[-1]`, `[1.0]`, `[12345678]`, `[]`, `[1,]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want []uint32
		wantErr := json.Unmarshal(data, &want)
		j := NewJSON(data)
		got, err := j.Tokens(nil)
		if err == nil {
			err = j.End()
		}
		if wantErr == nil && strings.Contains(string(data), "null") {
			return // encoding/json takes null for anything
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: %v, encoding/json %v", data, err, wantErr)
		}
		if err == nil && !slices.Equal(got, want) {
			t.Fatalf("%q: %v, want %v", data, got, want)
		}
	})
}

func BenchmarkTokens(b *testing.B) {
	const n = 1_000_000
	r := rand.New(rand.NewPCG(3, 4))
	for _, sep := range []string{",", ", "} {
		text := []byte{'['}
		for i := range n {
			if i > 0 {
				text = append(text, sep...)
			}
			text = strconv.AppendUint(text, r.Uint64N(152_000), 10)
		}
		text = append(text, ']')
		b.Run(fmt.Sprintf("separator=%q", sep), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			dst := make([]uint32, 0, n)
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if dst, err = NewJSON(text).Tokens(dst[:0]); err != nil || len(dst) != n {
					b.Fatal(len(dst), err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/token")
		})
		b.Run(fmt.Sprintf("standard/separator=%q", sep), func(b *testing.B) {
			for b.Loop() {
				var dst []uint32
				if err := json.Unmarshal(text, &dst); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/token")
		})
	}
}
