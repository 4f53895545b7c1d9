package zmq

/*
#cgo pkg-config: libzmq
#cgo noescape kv_recv
#cgo nocallback kv_recv
#cgo noescape kv_send
#cgo nocallback kv_send
#cgo noescape kv_monitor_recv
#cgo nocallback kv_monitor_recv
#cgo noescape kv_msg_sized
#cgo nocallback kv_msg_sized
#cgo noescape kv_msg_send
#cgo nocallback kv_msg_send

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

typedef struct {
    void  *data;
    size_t size;
    int    more; // another frame of the same message follows
} kv_frame;

// One batch belongs to one loop. msgs[0..held) are open and own what frames
// point to; they are closed by the next kv_recv or by kv_batch_release.
typedef struct {
    zmq_msg_t *msgs;
    kv_frame  *frames;
    int        cap;
    int        held;
    int        drained; // the socket had no further message
    int        err;     // errno of a receive that failed otherwise
} kv_batch;

static int kv_batch_grow(kv_batch *b, int cap)
{
    zmq_msg_t *msgs   = malloc(sizeof(zmq_msg_t) * (size_t) cap);
    kv_frame  *frames = malloc(sizeof(kv_frame) * (size_t) cap);
    if (!msgs || !frames) {
        free(msgs);
        free(frames);
        return -1;
    }
    // Small messages live inside zmq_msg_t, so moving one moves its bytes.
    for (int i = 0; i < b->held; i++) {
        zmq_msg_init(&msgs[i]);
        zmq_msg_move(&msgs[i], &b->msgs[i]);
        zmq_msg_close(&b->msgs[i]);
        frames[i].data = zmq_msg_data(&msgs[i]);
        frames[i].size = b->frames[i].size;
        frames[i].more = b->frames[i].more;
    }
    free(b->msgs);
    free(b->frames);
    b->msgs   = msgs;
    b->frames = frames;
    b->cap    = cap;
    return 0;
}

static kv_batch *kv_batch_new(int cap)
{
    kv_batch *b = calloc(1, sizeof(kv_batch));
    if (b && kv_batch_grow(b, cap) != 0) {
        free(b);
        b = NULL;
    }
    return b;
}

static void kv_batch_release(kv_batch *b)
{
    for (int i = 0; i < b->held; i++)
        zmq_msg_close(&b->msgs[i]);
    b->held = 0;
}

static void kv_batch_free(kv_batch *b)
{
    kv_batch_release(b);
    free(b->msgs);
    free(b->frames);
    free(b);
}

// kv_recv takes whole messages until the socket is empty or one of the limits is
// reached, and returns the number of frames. A message with more frames than fit
// makes the batch grow: libzmq holds it in memory already.
static int kv_recv(void *socket, kv_batch *b, int max_messages, size_t max_bytes, int shrink_above)
{
    kv_batch_release(b);
    b->drained = 0;
    b->err     = 0;
    if (b->cap > shrink_above)
        kv_batch_grow(b, shrink_above); // a failure leaves the larger one in place

    int    more  = 0;
    int    whole = 0;
    int    count = 0;
    size_t bytes = 0;
    while (more || (count < max_messages && bytes < max_bytes && b->held + 4 <= b->cap)) {
        if (b->held == b->cap && kv_batch_grow(b, 2 * b->cap) != 0) {
            b->err = ENOMEM;
            break;
        }
        zmq_msg_t *m = &b->msgs[b->held];
        zmq_msg_init(m);
        int rc;
        do {
            rc = zmq_msg_recv(m, socket, ZMQ_DONTWAIT);
        } while (rc < 0 && errno == EINTR);
        if (rc < 0) {
            int e = errno;
            zmq_msg_close(m);
            if (e == EAGAIN)
                b->drained = 1;
            else
                b->err = e;
            break;
        }
        more = zmq_msg_more(m);
        b->frames[b->held].data = zmq_msg_data(m);
        b->frames[b->held].size = zmq_msg_size(m);
        b->frames[b->held].more = more;
        bytes += zmq_msg_size(m);
        b->held++;
        if (!more) {
            whole = b->held;
            count++;
        }
    }
    return whole;
}

// kv_connection names the connection that a message came through: the address of
// a string in the metadata that all messages of one connection share. It is
// unique as long as one of those messages is open.
static const void *kv_connection(kv_batch *b, int i)
{
    return zmq_msg_gets(&b->msgs[i], "Socket-Type");
}

static void kv_keep(zmq_msg_t *dst, kv_batch *b, int i)
{
    zmq_msg_copy(dst, &b->msgs[i]);
}

static zmq_msg_t *kv_msg_new(void)
{
    zmq_msg_t *m = malloc(sizeof(zmq_msg_t));
    if (m)
        zmq_msg_init(m);
    return m;
}

static void kv_msg_free(zmq_msg_t *m)
{
    zmq_msg_close(m);
    free(m);
}

static const void *kv_msg_connection(zmq_msg_t *m)
{
    return zmq_msg_gets(m, "Socket-Type");
}

// kv_monitor_recv takes one event of a monitor: 1 and the event, 0 when there is
// none, -1 on an error.
static int kv_monitor_recv(void *pair, int *event)
{
    zmq_msg_t m;
    zmq_msg_init(&m);
    int rc;
    do {
        rc = zmq_msg_recv(&m, pair, ZMQ_DONTWAIT);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        int e = errno;
        zmq_msg_close(&m);
        errno = e;
        return e == EAGAIN ? 0 : -1;
    }
    uint16_t id = 0;
    if (zmq_msg_size(&m) >= sizeof id)
        memcpy(&id, zmq_msg_data(&m), sizeof id);
    *event = id;
    while (zmq_msg_more(&m)) {
        zmq_msg_close(&m);
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, pair, ZMQ_DONTWAIT) < 0)
            break;
    }
    zmq_msg_close(&m);
    return 1;
}

// kv_send sends one frame without waiting and returns 0 or the errno.
static int kv_send(void *socket, const void *data, size_t size, int more)
{
    int rc;
    do {
        rc = zmq_send(socket, data, size, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
    } while (rc < 0 && errno == EINTR);
    return rc < 0 ? errno : 0;
}

// kv_msg_sized makes a message that lives until kv_msg_send has sent it, or
// kv_msg_free. libzmq binds a message to no thread.
static zmq_msg_t *kv_msg_sized(size_t size, void **data)
{
    zmq_msg_t *m = malloc(sizeof(zmq_msg_t));
    if (!m)
        return NULL;
    if (zmq_msg_init_size(m, size) != 0) {
        free(m);
        return NULL;
    }
    *data = zmq_msg_data(m);
    return m;
}

// kv_msg_send sends messages of one frame without waiting, and without copying
// them, until one does not go. It returns how many went, with how many bytes, and
// frees those.
static int kv_msg_send(void *socket, zmq_msg_t **msgs, int n, size_t *bytes, int *err)
{
    *err   = 0;
    *bytes = 0;
    for (int i = 0; i < n; i++) {
        size_t size = zmq_msg_size(msgs[i]);
        int rc;
        do {
            rc = zmq_msg_send(msgs[i], socket, ZMQ_DONTWAIT);
        } while (rc < 0 && errno == EINTR);
        if (rc < 0) {
            *err = errno;
            return i;
        }
        *bytes += size;
        free(msgs[i]);
    }
    return n;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"reflect"
	"syscall"
	"unsafe"

	zmq4 "github.com/pebbe/zmq4"
)

// Limits of one receive call. They bound what is held at once, not what a socket
// may send.
const (
	batchMessages = 64
	batchBytes    = 1 << 20
	batchFrames   = 4 * batchMessages
)

// rawSocket is libzmq's own handle of a socket.
type rawSocket = unsafe.Pointer

// rawOf returns the handle inside a zmq4 socket. zmq4 has no accessor for it, and
// its receive call copies and allocates twice a frame. Reading the field through
// reflection fails cleanly should a later zmq4 name it differently.
func rawOf(s *zmq4.Socket) (rawSocket, error) {
	f := reflect.ValueOf(s).Elem().FieldByName("soc")
	if !f.IsValid() || f.Kind() != reflect.UnsafePointer {
		return nil, errors.New("zmq4.Socket has no handle field: unsupported version of github.com/pebbe/zmq4")
	}
	p := f.UnsafePointer()
	if p == nil {
		return nil, errors.New("zmq4.Socket has no handle")
	}
	return p, nil
}

// batch receives messages without copying: its frames alias memory of libzmq and
// are valid until the next recv or release.
type batch struct{ c *C.kv_batch }

func newBatch() (batch, error) {
	c := C.kv_batch_new(batchFrames)
	if c == nil {
		return batch{}, fmt.Errorf("receive buffer: %w", syscall.ENOMEM)
	}
	return batch{c}, nil
}

func (b batch) free()    { C.kv_batch_free(b.c) }
func (b batch) release() { C.kv_batch_release(b.c) }

// recv takes whole messages off the socket and returns the number of frames.
// drained reports that the socket is empty: only then does libzmq signal its
// descriptor again.
func (b batch) recv(s rawSocket) (frames int, drained bool, err error) {
	n := C.kv_recv(s, b.c, batchMessages, batchBytes, batchFrames)
	if b.c.err != 0 {
		err = zmq4.Errno(b.c.err)
	}
	return int(n), b.c.drained != 0, err
}

// message appends the frames of the message that starts at frame i to dst and
// returns the index behind it.
func (b batch) message(dst [][]byte, i int) ([][]byte, int) {
	frames := unsafe.Slice(b.c.frames, int(b.c.held))
	for ; ; i++ {
		f := &frames[i]
		dst = append(dst, unsafe.Slice((*byte)(f.data), int(f.size)))
		if f.more == 0 {
			return dst, i + 1
		}
	}
}

// connection names the connection that frame i came through; nil when unknown.
func (b batch) connection(i int) unsafe.Pointer {
	return unsafe.Pointer(C.kv_connection(b.c, C.int(i)))
}

// anchor keeps one frame of a connection, so that the name of that connection
// cannot be given to another one.
type anchor struct{ c *C.zmq_msg_t }

func newAnchor() (anchor, error) {
	c := C.kv_msg_new()
	if c == nil {
		return anchor{}, fmt.Errorf("receive buffer: %w", syscall.ENOMEM)
	}
	return anchor{c}, nil
}

func (a anchor) keep(b batch, i int) { C.kv_keep(a.c, b.c, C.int(i)) }
func (a anchor) connection() unsafe.Pointer {
	return unsafe.Pointer(C.kv_msg_connection(a.c))
}
func (a anchor) free() { C.kv_msg_free(a.c) }

// monitorRecv takes one event off a monitor; ok is false when there is none.
func monitorRecv(s rawSocket) (event zmq4.Event, ok bool, err error) {
	var e C.int
	switch rc, errno := C.kv_monitor_recv(s, &e); rc {
	case 1:
		return zmq4.Event(e), true, nil
	case 0:
		return 0, false, nil
	default:
		return 0, false, errno
	}
}

// send sends one frame without waiting.
func send(s rawSocket, frame []byte, more bool) error {
	m := C.int(0)
	if more {
		m = 1
	}
	if e := C.kv_send(s, unsafe.Pointer(unsafe.SliceData(frame)), C.size_t(len(frame)), m); e != 0 {
		return zmq4.Errno(e)
	}
	return nil
}

// sendAll sends the frames of one message without waiting.
func sendAll(s rawSocket, frames ...[]byte) error {
	for i, f := range frames {
		if err := send(s, f, i < len(frames)-1); err != nil {
			return err
		}
	}
	return nil
}

// outMessage is a message of one frame that waits to be sent.
type outMessage = *C.zmq_msg_t

// newOutMessage joins the parts to one message of that size.
func newOutMessage(size int, parts [][]byte) outMessage {
	var data unsafe.Pointer
	m := C.kv_msg_sized(C.size_t(size), &data)
	if m == nil {
		return nil
	}
	dst := unsafe.Slice((*byte)(data), size)
	for _, p := range parts {
		dst = dst[copy(dst, p):]
	}
	return m
}

func freeOutMessage(m outMessage) { C.kv_msg_free(m) }

// sendOut sends messages without waiting and returns how many went, and their
// bytes. The others are still the caller's.
func sendOut(s rawSocket, msgs []outMessage) (n int, bytes int64, err error) {
	if len(msgs) == 0 {
		return 0, 0, nil
	}
	var e C.int
	var size C.size_t
	n = int(C.kv_msg_send(s, unsafe.SliceData(msgs), C.int(len(msgs)), &size, &e))
	if e != 0 {
		err = zmq4.Errno(e)
	}
	return n, int64(size), err
}
