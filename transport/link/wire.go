package link

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"time"

	"github.com/zeebo/xxh3"
)

// version of the protocol. Nodes of different versions refuse each other.
const version = 2

const (
	magic0, magic1 = 'K', 'L'

	headerSize = 8
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
	kindBoth // Data that an acknowledgement of the other direction rides on
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

func appendNumbers(b []byte, v ...uint64) []byte {
	for _, x := range v {
		b = binary.AppendUvarint(b, x)
	}
	return b
}

func appendSession(b []byte, s Session) []byte {
	return appendNumbers(appendU64(b, s.SenderBoot, s.ReceiverBoot), s.Number)
}

// numberSize is the length of a number of appendNumbers.
func numberSize(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// stampUnit is what stamps count. They are rounded down, so a receiver is current for
// less time than it might be, and never for more.
const stampUnit = time.Millisecond

// stampAt is the stamp of a moment; it never is 0.
func stampAt(now clock) uint64 { return uint64(now/stampUnit) + 1 }

// clockOf is the earliest moment with that stamp, which must not be 0 or of the future.
func clockOf(stamp uint64) clock { return clock(stamp-1) * stampUnit }

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

// number reads what appendNumbers wrote.
func (r *reader) number() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
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
	return Session{Peer: peer, SenderBoot: r.u64(), ReceiverBoot: r.u64(), Number: r.number()}
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
	stamp   uint64 // the receiver's clock, see stampAt
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
	return m.appendBody(b)
}

func (m data) appendBody(b []byte) []byte {
	return appendNumbers(b, m.echo, m.first, m.last-(m.first-1))
}

// appendBoth is append with an acknowledgement of a session between the same two boots
// in the other direction.
func (m data) appendBoth(b []byte, tag uint32, a ack) []byte {
	b = appendSession(appendHeader(b, kindBoth, tag), m.session)
	return m.appendBody(a.appendBody(appendNumbers(b, a.session.Number)))
}

// parseData checks all lengths, so that a message is taken whole or not at all.
func parseData(peer string, body []byte) (m data, err error) {
	r := reader{b: body}
	m.session = r.session(peer)
	return m, m.parseBody(&r)
}

func (m *data) parseBody(r *reader) error {
	m.echo, m.first = r.number(), r.number()
	m.last = m.first - 1 + r.number()
	m.frames = r.b
	if m.first == 0 || m.last < m.first-1 {
		return errWire
	}
	for !r.bad && len(r.b) > 0 {
		r.bytes(int(min(r.number(), math.MaxInt32)))
	}
	return r.done(true)
}

func parseBoth(peer string, body []byte) (m data, a ack, err error) {
	r := reader{b: body}
	m.session = r.session(peer)
	a.session = Session{Peer: peer, SenderBoot: m.session.ReceiverBoot, ReceiverBoot: m.session.SenderBoot, Number: r.number()}
	if err := a.parseBody(&r); err != nil {
		return m, a, err
	}
	return m, a, m.parseBody(&r)
}

// next takes a frame off the message.
func (m *data) next() (payload []byte, ok bool) {
	if len(m.frames) == 0 {
		return nil, false
	}
	size, at := binary.Uvarint(m.frames)
	n := at + int(size)
	payload = m.frames[at:n:n]
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
	return m.appendBody(appendSession(appendHeader(b, kindAck, tag), m.session))
}

func (m ack) appendBody(b []byte) []byte {
	return appendNumbers(b, m.stamp, m.applied, m.from, m.to-m.from)
}

func parseAck(peer string, body []byte) (m ack, err error) {
	r := reader{b: body}
	m.session = r.session(peer)
	if err := m.parseBody(&r); err != nil {
		return m, err
	}
	return m, r.done(true)
}

func (m *ack) parseBody(r *reader) error {
	m.stamp, m.applied, m.from = r.number(), r.number(), r.number()
	m.to = m.from + r.number()
	if m.to < m.from {
		return errWire
	}
	return r.done(false)
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
