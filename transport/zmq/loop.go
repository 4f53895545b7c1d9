package zmq

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	zmq4 "github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/internal/timers"
)

const (
	// turnTime bounds how long sockets are drained before posts, timers and
	// connection events get their turn.
	turnTime = 5 * time.Millisecond
	// socketCalls bounds how many receive calls (of batchMessages each) one socket
	// gets before the next ready one.
	socketCalls = 4
	// pollEvents is how many events one epoll call can report.
	pollEvents = 512
)

// loop implements transport.Loop.
type loop struct {
	net   *Network
	ctx   *zmq4.Context
	name  string
	log   *slog.Logger
	ended func() // called once, when Run has returned

	// Touched only by the goroutine of Run.
	epoll     int
	waiter    *os.File // of epoll, which it closes
	waiting   syscall.RawConn
	wakeFD    int
	events    []unix.EpollEvent
	sockets   map[*socket]struct{}
	slots     []slot // what the epoll events name
	freeSlots []int32
	ready     []*socket // queued for draining, each at most once
	spare     []*socket
	batch     batch
	frames    [][]byte
	timers    timers.Heap
	running   []func() // posts taken by this turn
	closing   bool
	lookups   struct { // goroutines that wait for the name service
		ctx    context.Context
		cancel context.CancelFunc
		wait   sync.WaitGroup
	}
	// fresh is a moment before the last look at all descriptors: whatever was
	// signalled before it has been seen.
	fresh time.Time
	until time.Time // the deadline of waiter

	count struct {
		sockets                                         atomic.Int64
		messages, bytes, wakeups, connects, disconnects atomic.Uint64
	}

	mu struct {
		sync.Mutex
		posts    []func()
		sleeping bool // about to wait: a post must wake it
		started  bool
		ended    bool // posts are refused and wakeFD is closed
	}
}

// slot is one descriptor in the epoll set. The generation tells a late event of a
// closed socket from one of the socket that took its place.
type slot struct {
	s          *socket
	monitor    bool
	generation int32
}

// wakeSlot is the event id of wakeFD.
const wakeSlot = -1

func newLoop(n *Network, ctx *zmq4.Context, name string, ended func()) *loop {
	l := &loop{
		net: n, ctx: ctx, name: name, ended: ended,
		log:     n.cfg.Logger.With("loop", name),
		sockets: map[*socket]struct{}{},
		epoll:   -1, wakeFD: -1,
	}
	l.lookups.ctx, l.lookups.cancel = context.WithCancel(context.Background())
	return l
}

// Post implements transport.Loop.
func (l *loop) Post(fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.ended {
		return false
	}
	l.mu.posts = append(l.mu.posts, fn)
	l.wakeLocked()
	return true
}

// wakeLocked writes to the descriptor under the lock, because the end of the loop
// closes it under the same lock.
func (l *loop) wakeLocked() {
	if !l.mu.sleeping {
		return
	}
	l.mu.sleeping = false
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	// The only possible failure is a counter near 2^64: then it is awake anyway.
	_, _ = unix.Write(l.wakeFD, one[:])
}

// Run implements transport.Loop.
func (l *loop) Run(ctx context.Context) error {
	l.mu.Lock()
	started := l.mu.started
	l.mu.started = true
	l.mu.Unlock()
	if started {
		return fmt.Errorf("run loop %s: already running or ended: %w", l.name, transport.ErrClosed)
	}
	if err := l.open(); err != nil {
		l.end()
		return fmt.Errorf("run loop %s: %w", l.name, err)
	}
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wakeLocked()
	})
	defer stop()

	for ctx.Err() == nil {
		l.runPosts()
		l.timers.Run(time.Now())
		l.poll(ctx)
		l.drainReady()
	}
	l.end()
	return nil
}

// open makes the descriptors of the loop.
func (l *loop) open() error {
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	// Non-blocking, for the runtime to take it into its own poller.
	if err = unix.SetNonblock(l.epoll, true); err != nil {
		unix.Close(l.epoll)
		l.epoll = -1
		return fmt.Errorf("epoll: %w", err)
	}
	l.waiter = os.NewFile(uintptr(l.epoll), "epoll")
	if l.waiting, err = l.waiter.SyscallConn(); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	if err = l.waiter.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("epoll cannot be waited for: %w", err)
	}
	if l.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: wakeSlot}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, l.wakeFD, &ev); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	if l.batch, err = newBatch(); err != nil {
		return err
	}
	l.events = make([]unix.EpollEvent, pollEvents)
	return nil
}

// end refuses further posts, runs those that were accepted, and closes all.
func (l *loop) end() {
	l.closing = true
	l.mu.Lock()
	l.mu.ended = true
	l.mu.sleeping = false
	if l.wakeFD >= 0 {
		unix.Close(l.wakeFD)
	}
	l.mu.Unlock()
	l.runPosts()
	for s := range l.sockets {
		s.Close()
	}
	l.lookups.cancel()
	l.lookups.wait.Wait()
	l.timers.Clear()
	if l.waiter != nil {
		l.waiter.Close()
	}
	if l.batch.c != nil {
		l.batch.free()
		l.batch.c = nil
	}
	l.ended()
}

// runPosts runs what was posted up to now, and nothing that those post.
func (l *loop) runPosts() {
	l.mu.Lock()
	l.running, l.mu.posts = l.mu.posts, l.running[:0]
	l.mu.Unlock()
	for i, fn := range l.running {
		l.running[i] = nil
		fn()
	}
}

// poll looks at all descriptors, and waits when there is nothing else to do. It waits in
// the runtime's poller and not in a system call, which would keep a processor of the
// runtime for up to 10 ms, and its monitor awake for as long: half of what an idle node
// used.
func (l *loop) poll(ctx context.Context) {
	wait := len(l.ready) == 0
	var until time.Time // zero = for ever
	if at, ok := l.timers.Next(); ok && wait {
		until = at
		wait = time.Until(at) > 0
	}
	l.mu.Lock()
	if len(l.mu.posts) > 0 || ctx.Err() != nil {
		wait = false
	}
	l.mu.sleeping = wait
	l.mu.Unlock()

	n := l.look()
	if n == 0 && wait {
		if !until.Equal(l.until) {
			l.until = until
			// It was found possible in open.
			_ = l.waiter.SetReadDeadline(until)
		}
		err := l.waiting.Read(func(uintptr) bool {
			n = l.look()
			return n > 0
		})
		if err != nil {
			n = l.look() // the time is up
		}
	}
	for {
		for _, ev := range l.events[:n] {
			l.signalled(ev)
		}
		if n < len(l.events) {
			break
		}
		n = l.look() // a full answer may hide more
	}
	l.count.wakeups.Add(1)
	l.mu.Lock()
	l.mu.sleeping = false
	l.mu.Unlock()
}

// look asks for events without waiting. It does not tell the runtime of the system call,
// which takes a microsecond.
func (l *loop) look() int {
	l.fresh = time.Now()
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(unsafe.SliceData(l.events))), uintptr(len(l.events)), 0, 0, 0)
	if errno != 0 {
		return 0 // EINTR; anything else cannot happen with these descriptors
	}
	return int(n)
}

func (l *loop) signalled(ev unix.EpollEvent) {
	if ev.Fd == wakeSlot {
		var b [8]byte
		_, _ = unix.Read(l.wakeFD, b[:]) // empties it; nothing is in the number
		return
	}
	sl := l.slots[ev.Fd]
	if sl.s == nil || sl.generation != ev.Pad {
		return
	}
	if sl.monitor {
		sl.s.readMonitor()
		return
	}
	l.enqueue(sl.s)
}

// enqueue has the socket drained in this turn or the next.
func (l *loop) enqueue(s *socket) {
	if !s.queued && !s.closed {
		s.queued = true
		l.ready = append(l.ready, s)
	}
}

// drainReady gives every ready socket its share, in order. What remains comes
// after those that became ready meanwhile.
func (l *loop) drainReady() {
	if len(l.ready) == 0 {
		return
	}
	list := l.ready
	l.ready = l.spare[:0]
	start := time.Now()
	for i, s := range list {
		if i > 0 && time.Since(start) > turnTime {
			// Not looked at yet: they go first in the next turn.
			rest := append([]*socket(nil), list[i:]...)
			l.ready = append(rest, l.ready...)
			break
		}
		s.queued = false
		if s.closed {
			continue
		}
		if more := s.drain(); more {
			l.enqueue(s)
		}
	}
	clear(list)
	l.spare = list
}

// watch adds a descriptor of libzmq to the epoll set. It is edge-triggered: the
// descriptor is readable whenever the socket has commands waiting, which says
// little about messages.
func (l *loop) watch(s *socket, fd int, monitor bool) (int32, error) {
	var i int32
	if n := len(l.freeSlots); n > 0 {
		i = l.freeSlots[n-1]
		l.freeSlots = l.freeSlots[:n-1]
	} else {
		i = int32(len(l.slots))
		l.slots = append(l.slots, slot{})
	}
	sl := &l.slots[i]
	sl.generation++
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: i, Pad: sl.generation}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		l.freeSlots = append(l.freeSlots, i)
		return -1, fmt.Errorf("epoll_ctl: %w", err)
	}
	sl.s, sl.monitor = s, monitor
	return i, nil
}

func (l *loop) unwatch(i int32, fd int) {
	if i < 0 {
		return
	}
	l.slots[i].s = nil
	l.freeSlots = append(l.freeSlots, i)
	// The descriptor is still open here, so this cannot fail.
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil)
}

// AfterFunc implements transport.Loop.
func (l *loop) AfterFunc(d time.Duration, fn func()) transport.Timer {
	if l.closing {
		return timers.Expired()
	}
	return l.timers.Add(time.Now().Add(max(d, 0)), fn)
}

// Now implements transport.Loop.
func (l *loop) Now() time.Time { return time.Now() }

// Stats implements transport.Loop.
func (l *loop) Stats() transport.LoopStats {
	l.mu.Lock()
	pending := len(l.mu.posts)
	l.mu.Unlock()
	return transport.LoopStats{
		Name:         l.name,
		Sockets:      int(l.count.sockets.Load()),
		Messages:     l.count.messages.Load(),
		Bytes:        l.count.bytes.Load(),
		Wakeups:      l.count.wakeups.Load(),
		Connects:     l.count.connects.Load(),
		Disconnects:  l.count.disconnects.Load(),
		PendingPosts: pending,
	}
}
