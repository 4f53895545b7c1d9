package translate

import (
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// FuzzStream reads events from bytes and plays them into a translator and its
// model: two bytes of head (kind, tier, length), then a hash a byte.
func FuzzStream(f *testing.F) {
	f.Add([]byte{0x00, 3, 1, 2, 3, 0x40, 2, 3, 2, 0x00, 1, 3, 9})
	f.Add([]byte{0x00, 2, 7, 7, 0x01, 1, 7, 8})                         // [a a], then b below a
	f.Add([]byte{0x01, 2, 5, 6, 7, 0x01, 1, 4, 5, 0x00, 1, 4})          // orphans, parent last
	f.Add([]byte{0x00, 3, 1, 2, 3, 0x08, 1, 2, 0x80, 2, 1, 2, 3, 0xc0}) // tiers, placeholder, clear
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 400 {
			in = in[:400]
		}
		w := newWorld(Config{CountCopies: len(in)%2 == 1})
		if len(in)%3 == 0 {
			w.t.scratch.minIDBits = maxIDBits
		}
		take := func() (b byte) {
			if len(in) > 0 {
				b, in = in[0], in[1:]
			}
			return b
		}
		for len(in) > 0 && !w.model.collided {
			var events []func(tb)
			for range 1 + len(in)%3 {
				head := take()
				tier := indexer.Tier(head >> 2 & 3)
				s := Store{Tier: tier}
				if s.HasParent = head&1 != 0; s.HasParent {
					s.Parent = spread(uint64(take()))
				}
				n := 1 + int(take())%20
				for range min(n, len(in)) {
					h := take()
					s.Engines = append(s.Engines, spread(uint64(h)))
					s.Content.Tokens = append(s.Content.Tokens, uint32(h&7))
				}
				s.Content.BlockSize, s.Content.Window = 1, 1
				if head&0x30 == 0x30 {
					s.Lora = string(rune('a' + head>>2&1))
				}
				switch head >> 6 {
				case 1:
					events = append(events, func(tb) { w.remove(tier, s.Engines) })
				case 2:
					s.Placeholder = true
					events = append(events, func(t tb) { w.store(t, s) })
				case 3:
					if head&2 != 0 {
						tier = indexer.AllTiers
					}
					events = append(events, func(tb) { w.clear(tier) })
				default:
					if len(s.Engines) > 0 {
						events = append(events, func(t tb) { w.store(t, s) })
					}
				}
			}
			w.batch(t, events...)
		}
	})
}
