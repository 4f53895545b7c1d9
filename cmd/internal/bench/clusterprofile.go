package bench

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Parts of a node's work, in the order of a block's way.
const (
	partIO        = "io"        // libzmq's I/O threads: sockets of streams and links
	partReceive   = "receive"   // messages of engines out of sockets, order and replay
	partDecode    = "decode"    // engines' formats
	partTranslate = "translate" // events to frames
	partForward   = "forward"   // frames to other nodes and from them: fan-out, links, their sockets
	partApply     = "apply"     // frames to the index, copies of other nodes included
	partQuery     = "query"     // HTTP, search, lookups
	partControl   = "control"   // log, gossip, layout
	partRuntime   = "runtime"   // scheduler and collector of Go, where nothing above is on the stack
)

var clusterParts = []string{partIO, partReceive, partDecode, partTranslate, partForward, partApply, partQuery, partControl, partRuntime}

const modulePath = "github.com/kvcluster/kvcluster/"

// wholeStack are functions that say what a sample is for wherever they are on its
// stack; the first that is found wins.
var wholeStack = []struct{ prefix, part string }{
	{"runtime/pprof.", ""}, // the measurement itself
	{"net/http/pprof.", ""},
	{modulePath + "router", partQuery},
	{modulePath + "cluster/search", partQuery},
	{"net/http.", partQuery},
	{modulePath + "transport/zmq.(*Network).NewMesh", partForward},
	{modulePath + "transport/zmq.(*mesh", partForward},
}

// innermost are functions of which the innermost on the stack decides.
var innermost = []struct{ prefix, part string }{
	{modulePath + "transport/engine", partDecode},
	{modulePath + "cluster/ingest/translate", partTranslate},
	{modulePath + "cluster/ingest", partReceive},
	{modulePath + "cluster/fanout", partForward},
	{modulePath + "cluster/copywire", partForward},
	{modulePath + "transport/link", partForward},
	{modulePath + "transport", partReceive},
	{modulePath + "cluster/owner", partApply},
	{modulePath + "indexer/blockhash", partTranslate},
	{modulePath + "indexer", partApply},
	{modulePath + "cluster", partControl},
	{modulePath, partControl},
	{"github.com/hashicorp/", partControl},
	{"go.etcd.io/", partControl},
}

// partOf tells what a stack is for; "" = it does not count. The innermost function
// comes first.
func partOf(stack []string) string {
	for _, w := range wholeStack {
		for _, fn := range stack {
			if strings.HasPrefix(fn, w.prefix) {
				return w.part
			}
		}
	}
	for _, fn := range stack {
		for _, p := range innermost {
			if strings.HasPrefix(fn, p.prefix) {
				return p.part
			}
		}
	}
	if len(stack) > 0 && strings.HasPrefix(stack[0], "runtime._ExternalCode") {
		return "" // threads that are not Go's: their clocks say it exactly
	}
	return partRuntime
}

// fetchProfile takes a CPU profile of a node for so many seconds.
func fetchProfile(ctx context.Context, address string, seconds int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", address, seconds), nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("profile: %s: %s", res.Status, raw)
	}
	return raw, nil
}

// countParts counts the samples of a profile by part.
func countParts(raw []byte) (map[string]int64, error) {
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if raw, err = io.ReadAll(z); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	p, err := parseProfile(raw)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	out := map[string]int64{}
	for _, s := range p.samples {
		var stack []string
		for _, loc := range s.locations {
			for _, fn := range p.lines[loc] {
				name := p.names[fn]
				if name >= uint64(len(p.text)) {
					return nil, fmt.Errorf("profile: %w", errProto)
				}
				stack = append(stack, p.text[name])
			}
		}
		if part := partOf(stack); part != "" {
			out[part] += s.count
		}
	}
	return out, nil
}

// profileData is what is needed of a profile (pprof's profile.proto, gzip taken off).
type profileData struct {
	samples []profileSample
	lines   map[uint64][]uint64 // functions of a location, inlined ones first
	names   map[uint64]uint64   // of functions, as places in text
	text    []string
}

type profileSample struct {
	locations []uint64 // innermost first
	count     int64
}

var errProto = errors.New("malformed protocol buffer")

func parseProfile(raw []byte) (*profileData, error) {
	p := &profileData{lines: map[uint64][]uint64{}, names: map[uint64]uint64{}}
	err := eachField(raw, func(field uint64, _ uint64, b []byte) error {
		switch field {
		case 2: // sample: locations = 1, values = 2, of which the first is a count
			var s profileSample
			var values []uint64
			err := eachField(b, func(f, v uint64, b []byte) (err error) {
				switch f {
				case 1:
					s.locations, err = appendNumbers(s.locations, v, b)
				case 2:
					values, err = appendNumbers(values, v, b)
				}
				return err
			})
			if err != nil || len(values) == 0 {
				return errors.Join(err, errProto)
			}
			s.count = int64(values[0])
			p.samples = append(p.samples, s)
		case 4: // location: id = 1, line = 4 with function = 1
			var id uint64
			var fns []uint64
			err := eachField(b, func(f, v uint64, b []byte) error {
				switch f {
				case 1:
					id = v
				case 4:
					return eachField(b, func(f, v uint64, _ []byte) error {
						if f == 1 {
							fns = append(fns, v)
						}
						return nil
					})
				}
				return nil
			})
			p.lines[id] = fns
			return err
		case 5: // function: id = 1, name = 2
			var id, name uint64
			err := eachField(b, func(f, v uint64, _ []byte) error {
				switch f {
				case 1:
					id = v
				case 2:
					name = v
				}
				return nil
			})
			p.names[id] = name
			return err
		case 6:
			p.text = append(p.text, string(b))
		}
		return nil
	})
	return p, err
}

// eachField calls fn for every field: with v for numbers, b for everything of a length.
func eachField(raw []byte, fn func(field, v uint64, b []byte) error) error {
	for len(raw) > 0 {
		key, n := binary.Uvarint(raw)
		if n <= 0 {
			return errProto
		}
		raw = raw[n:]
		var v uint64
		var b []byte
		switch key & 7 {
		case 0:
			if v, n = binary.Uvarint(raw); n <= 0 {
				return errProto
			}
			raw = raw[n:]
		case 1, 5:
			if n = 8; key&7 == 5 {
				n = 4
			}
			if len(raw) < n {
				return errProto
			}
			raw = raw[n:]
		case 2:
			size, n := binary.Uvarint(raw)
			if n <= 0 || size > uint64(len(raw)-n) {
				return errProto
			}
			b, raw = raw[n:n+int(size)], raw[n+int(size):]
		default:
			return errProto
		}
		if err := fn(key>>3, v, b); err != nil {
			return err
		}
	}
	return nil
}

// appendNumbers appends a repeated number, packed or single.
func appendNumbers(dst []uint64, v uint64, b []byte) ([]uint64, error) {
	if b == nil {
		return append(dst, v), nil
	}
	for len(b) > 0 {
		x, n := binary.Uvarint(b)
		if n <= 0 {
			return dst, errProto
		}
		dst, b = append(dst, x), b[n:]
	}
	return dst, nil
}
