package link

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/zeebo/xxh3"
)

// version of the protocol. Nodes of different versions refuse each other.
const version = 1

const (
	magic0, magic1 = 'K', 'L'

	headerSize  = 8
	sessionSize = 24
	dataSize    = headerSize + sessionSize + 3*8 // before the first frame
	frameSize   = 4                              // before each payload
	ackSize     = headerSize + sessionSize + 4*8
	acceptSize  = headerSize + sessionSize + 3*8
	openSize    = headerSize + 2*8 // before the name of the cluster
	callSize    = headerSize + 2*8
)

type kind uint8

const (
	kindOpen kind = 1 + iota
	kindAccept
	kindData
	kindAck
	kindUnknown
	kindRefuse
	kindRequest
	kindResponse
	kindCancel
)

// errWire: bytes that no hub of this version sends.
var errWire = errors.New("malformed message")

// appendHeader starts a message.
func appendHeader(b []byte, k kind, cluster uint32) []byte {
	b = append(b, magic0, magic1, version, byte(k))
	return binary.LittleEndian.AppendUint32(b, cluster)
}

// clusterTag is what every message carries of the cluster's name.
func clusterTag(name string) uint32 { return uint32(xxh3.HashString(name)) }

func appendU64(b []byte, v ...uint64) []byte {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

func appendSession(b []byte, s Session) []byte {
	return appendU64(b, s.SenderBoot, s.ReceiverBoot, s.Number)
}

// reader takes a message apart. After a short read it stays bad and gives zeros.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) u64() uint64 {
	if len(r.b) < 8 {
		r.bad, r.b = true, nil
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *reader) u32() uint32 {
	if len(r.b) < 4 {
		r.bad, r.b = true, nil
		return 0
	}
	v := binary.LittleEndian.Uint32(r.b)
	r.b = r.b[4:]
	return v
}

func (r *reader) bytes(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// short is a text with its length in one byte.
func (r *reader) short() []byte {
	n := r.bytes(1)
	if n == nil {
		return nil
	}
	return r.bytes(int(n[0]))
}

func appendShort(b []byte, s string) []byte {
	s = s[:min(len(s), 255)]
	return append(append(b, byte(len(s))), s...)
}

func (r *reader) session(peer string) Session {
	return Session{Peer: peer, SenderBoot: r.u64(), ReceiverBoot: r.u64(), Number: r.u64()}
}

// open asks for a session. opening counts the attempts of the sender's boot.
type open struct {
	boot, opening uint64
	cluster       string
}

func (m open) append(b []byte, tag uint32) []byte {
	b = appendU64(appendHeader(b, kindOpen, tag), m.boot, m.opening)
	return append(b, m.cluster...)
}

func parseOpen(body []byte) (m open, err error) {
	r := reader{b: body}
	m = open{boot: r.u64(), opening: r.u64(), cluster: string(r.b)}
	return m, r.done(false)
}

// done reports a message that was too short, or with whole set, too long.
func (r *reader) done(whole bool) error {
	if r.bad || whole && len(r.b) > 0 {
		return errWire
	}
	return nil
}

// accept grants a session.
type accept struct {
	session Session
	opening uint64
	stamp   uint64 // the receiver's clock
	window  uint64
}

func (m accept) append(b []byte, tag uint32) []byte {
	b = appendSession(appendHeader(b, kindAccept, tag), m.session)
	return appendU64(b, m.opening, m.stamp, m.window)
}

func parseAccept(peer string, body []byte) (m accept, err error) {
	r := reader{b: body}
	m = accept{session: r.session(peer), opening: r.u64(), stamp: r.u64(), window: r.u64()}
	return m, r.done(true)
}

// data carries frames first, first+1, ...; without any it is a heartbeat, and first
// is the number that will be sent next.
type data struct {
	session Session
	echo    uint64 // the newest stamp of the receiver
	last    uint64 // of the frames that the sender has accepted
	first   uint64
	frames  []byte // of them: length, payload, ...
}

func (m data) append(b []byte, tag uint32) []byte {
	b = appendSession(appendHeader(b, kindData, tag), m.session)
	return appendU64(b, m.echo, m.last, m.first)
}

// parseData checks all lengths, so that a message is taken whole or not at all.
func parseData(peer string, body []byte) (m data, err error) {
	r := reader{b: body}
	m = data{session: r.session(peer), echo: r.u64(), last: r.u64(), first: r.u64(), frames: r.b}
	if m.first == 0 {
		return m, errWire
	}
	for !r.bad && len(r.b) > 0 {
		r.bytes(int(r.u32()))
	}
	return m, r.done(true)
}

// next takes a frame off the message.
func (m *data) next() (payload []byte, ok bool) {
	if len(m.frames) == 0 {
		return nil, false
	}
	n := frameSize + int(binary.LittleEndian.Uint32(m.frames))
	payload = m.frames[frameSize:n:n]
	m.frames = m.frames[n:]
	return payload, true
}

// ack says what is applied, and asks for what is missing: the frames from to
// before to.
type ack struct {
	session  Session
	stamp    uint64
	applied  uint64
	from, to uint64
}

func (m ack) append(b []byte, tag uint32) []byte {
	b = appendSession(appendHeader(b, kindAck, tag), m.session)
	return appendU64(b, m.stamp, m.applied, m.from, m.to)
}

func parseAck(peer string, body []byte) (m ack, err error) {
	r := reader{b: body}
	m = ack{session: r.session(peer), stamp: r.u64(), applied: r.u64(), from: r.u64(), to: r.u64()}
	return m, r.done(true)
}

// refusal is understood by all versions, so its layout never changes.
func appendRefusal(b []byte, tag uint32, why string) []byte {
	return append(appendHeader(b, kindRefuse, tag), why[:min(len(why), 1024)]...)
}

// request is one call. Its time is what was left of it when it was sent, so that
// clocks need not agree.
type request struct {
	boot, id uint64
	timeout  time.Duration
	method   string
	body     []byte
}

func (m request) append(b []byte, tag uint32) []byte {
	b = appendU64(appendHeader(b, kindRequest, tag), m.boot, m.id, uint64(m.timeout))
	return appendShort(b, m.method)
}

func parseRequest(body []byte) (m request, err error) {
	r := reader{b: body}
	m = request{boot: r.u64(), id: r.u64(), timeout: time.Duration(r.u64()), method: string(r.short()), body: r.b}
	return m, r.done(false)
}

// response answers a call: a body, or an error with its code.
type response struct {
	boot, id uint64
	failed   bool
	code     string
	body     []byte // or the text of the error
}

func (m response) append(b []byte, tag uint32) []byte {
	b = appendU64(appendHeader(b, kindResponse, tag), m.boot, m.id)
	if m.failed {
		return appendShort(append(b, 1), m.code)
	}
	return append(b, 0)
}

func parseResponse(body []byte) (m response, err error) {
	r := reader{b: body}
	m = response{boot: r.u64(), id: r.u64()}
	if f := r.bytes(1); f != nil && f[0] != 0 {
		m.failed, m.code = true, string(r.short())
	}
	m.body = r.b
	return m, r.done(false)
}
