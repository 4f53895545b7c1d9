package gossip

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// A greeting and its answer are one message each, on a stream of the gossip port:
//
//	| "KVGOSSIP" | version u8 | verdict u8 | flags u8 | label length u8 | body length u16 |  14 bytes
//	| label | body | CR LF CR LF |
//
//	flags    bit 0: the body is sealed, bit 1: this is an answer
//	body     nonce (12 bytes) and AES-GCM with the header and the label as additional data, if sealed;
//	         time i64 (Unix ns) | count u8 | count x (address length u8, address, Meta length u16, Meta)
//
// little-endian. The first entry of the body is the sender itself, without an address;
// the rest, in answers, are nodes that are alive under the name or the server id of the
// one that asked. An answer with a verdict has no body. The end makes an HTTP server, whose
// port is the one that is given by mistake, answer at once instead of waiting for more. memberlist's own streams begin
// with a byte below 20 or with 244, so the first byte tells them apart.
const (
	greetingMagic   = "KVGOSSIP"
	greetingEnd     = "\r\n\r\n"
	greetingVersion = 1
	greetingHeader  = 14
	maxLabel        = 64
	maxBody         = 4096
	maxRivals       = 4
)

const (
	flagSealed = 1 << iota
	flagAnswer
)

// verdict is what the answering side says instead of a body.
type verdict uint8

const (
	welcome      verdict = iota
	otherLabel           // the answer's label is the right one
	needsKey             // it was not sealed and must be
	hasNoKey             // it was sealed and cannot be opened: there is no key here
	wrongKey             // it was sealed with another key
	malformed            // it could not be understood
	otherVersion         // the answer's version is the one spoken here
	numVerdicts  = iota
)

var errGreeting = errors.New("not a greeting")

// greeting is one message, taken apart.
type greeting struct {
	version uint8
	verdict verdict
	answer  bool
	sealed  bool
	label   string
	body    []byte // as sent

	time   time.Time
	self   Meta
	rivals []rival
}

// rival is a node that is alive, as far as the sender knows, under a name or server id.
type rival struct {
	address string
	meta    Meta
}

// append packs g with the key; an answer that is no welcome has no body.
func (g greeting) append(key []byte) ([]byte, error) {
	var flags byte
	var body []byte
	if g.answer {
		flags |= flagAnswer
	}
	if g.verdict == welcome {
		var err error
		if body, err = g.appendBody(nil); err != nil {
			return nil, err
		}
		if len(key) > 0 {
			flags |= flagSealed
		}
	}
	size := len(body)
	if flags&flagSealed != 0 {
		size += 12 + 16
	}
	out := append([]byte(greetingMagic), greetingVersion, byte(g.verdict), flags, byte(len(g.label)))
	out = binary.LittleEndian.AppendUint16(out, uint16(size))
	out = append(out, g.label...)
	if flags&flagSealed == 0 {
		return append(append(out, body...), greetingEnd...), nil
	}
	aead, err := newAEAD(key)
	if err != nil {
		return nil, err
	}
	var nonce [12]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, err
	}
	head := out[:len(out):len(out)]
	return append(append(out, aead.Seal(nonce[:], nonce[:], body, head)...), greetingEnd...), nil
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func (g greeting) appendBody(b []byte) ([]byte, error) {
	b = binary.LittleEndian.AppendUint64(b, uint64(g.time.UnixNano()))
	all := append([]rival{{meta: g.self}}, g.rivals...)
	b = append(b, byte(len(all)))
	for _, r := range all {
		meta, err := r.meta.Pack()
		if err != nil {
			return nil, err
		}
		address := r.address
		if len(address) > 255 {
			address = ""
		}
		b = append(append(b, byte(len(address))), address...)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(meta)))
		b = append(b, meta...)
	}
	return b, nil
}

// readGreeting reads one message; what is in its body is opened by open.
func readGreeting(r io.Reader) (g greeting, err error) {
	var head [greetingHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return g, err
	}
	if string(head[:8]) != greetingMagic {
		return g, errGreeting
	}
	flags, label, size := head[10], int(head[11]), int(binary.LittleEndian.Uint16(head[12:]))
	if label > maxLabel || size > maxBody || head[9] >= numVerdicts {
		return g, errGreeting
	}
	rest := make([]byte, label+size+len(greetingEnd))
	if _, err := io.ReadFull(r, rest); err != nil {
		return g, err
	}
	rest, end := rest[:label+size], rest[label+size:]
	if string(end) != greetingEnd {
		return g, errGreeting
	}
	return greeting{
		version: head[8], verdict: verdict(head[9]), answer: flags&flagAnswer != 0, sealed: flags&flagSealed != 0,
		label: string(rest[:label]), body: append(head[:], rest...),
	}, nil
}

// open reads the body. The verdict is what to say about it.
func (g *greeting) open(key []byte) verdict {
	head, body := g.body[:greetingHeader+len(g.label)], g.body[greetingHeader+len(g.label):]
	switch {
	case g.sealed && len(key) == 0:
		return hasNoKey
	case !g.sealed && len(key) > 0:
		return needsKey
	case g.sealed:
		aead, err := newAEAD(key)
		if err != nil || len(body) < 12 {
			return malformed
		}
		if body, err = aead.Open(nil, body[:12], body[12:], head); err != nil {
			return wrongKey
		}
	}
	if err := g.readBody(body); err != nil {
		return malformed
	}
	return welcome
}

func (g *greeting) readBody(b []byte) error {
	if len(b) < 9 {
		return errGreeting
	}
	g.time = time.Unix(0, int64(binary.LittleEndian.Uint64(b)))
	count := int(b[8])
	b = b[9:]
	if count < 1 || count > 1+maxRivals {
		return errGreeting
	}
	for i := range count {
		n := 0
		if len(b) > 0 {
			n = int(b[0])
		}
		if len(b) < 1+n+2 {
			return errGreeting
		}
		address := string(b[1 : 1+n])
		size := int(binary.LittleEndian.Uint16(b[1+n:]))
		b = b[1+n+2:]
		if len(b) < size {
			return errGreeting
		}
		meta, err := UnpackMeta(b[:size])
		if err != nil {
			return fmt.Errorf("%w: %w", errGreeting, err)
		}
		b = b[size:]
		if i == 0 {
			g.self = meta
		} else {
			g.rivals = append(g.rivals, rival{address, meta})
		}
	}
	return nil
}
