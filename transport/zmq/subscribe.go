package zmq

import (
	"errors"
	"fmt"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvcluster/kvcluster/transport"
)

// subscription passes messages to the handler as they are.
type subscription struct{ transport.SubscribeHandler }

func (s subscription) deliver(frames [][]byte) { s.OnMessage(frames) }

// Subscribe implements transport.Loop.
func (l *loop) Subscribe(cfg transport.SubscribeConfig, h transport.SubscribeHandler) (transport.Socket, error) {
	what := "subscribe " + cfg.Endpoint
	if l.closing {
		return nil, fmt.Errorf("%s: %w", what, transport.ErrClosed)
	}
	e, err := parseEndpoint(cfg.Endpoint, cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	if cfg.HighWater < 0 || cfg.MaxMessage < 0 {
		return nil, fmt.Errorf("%s: HighWater %d and MaxMessage %d must not be negative", what, cfg.HighWater, cfg.MaxMessage)
	}
	if cfg.HighWater == 0 {
		cfg.HighWater = defaultReceiveHighWater
	}
	if cfg.MaxMessage == 0 {
		cfg.MaxMessage = defaultMaxMessage
	}
	s, err := l.newSocket(zmq4.SUB, what, e, subscription{h}, socketOptions{monitored: true, bound: cfg.Bind}, func(zs *zmq4.Socket, target string) error {
		err := errors.Join(
			e.tune(zs, 0, cfg.MaxMessage),
			zs.SetRcvhwm(cfg.HighWater),
			zs.SetSubscribe(cfg.Topic),
		)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if cfg.Bind {
			return e.bind(zs)
		}
		return e.connect(zs, target)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// replay is a DEALER to an engine's ROUTER.
type replay struct {
	*socket
	transport.ReplayHandler
	stands bool
	// waiting are requests made while there was no connection. libzmq would keep them
	// too, but would also give them to a stranger that listens on the port.
	waiting []uint64
}

// OnConnect implements receiver.
func (r *replay) OnConnect() {
	r.stands = true
	for _, start := range r.waiting {
		if err := r.send(start); err != nil {
			r.loop.log.Error("request lost", "socket", r.what, "error", err)
		}
	}
	r.waiting = nil
	r.ReplayHandler.OnConnect()
}

// OnDisconnect implements receiver.
func (r *replay) OnDisconnect() {
	r.stands = false
	r.ReplayHandler.OnDisconnect()
}

// deliver takes off the empty delimiter. A reply without one is passed on whole:
// only the reader of its frames can say what it is.
func (r *replay) deliver(frames [][]byte) {
	if len(frames) > 0 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	r.OnReply(frames)
}

// OpenReplay implements transport.Loop.
func (l *loop) OpenReplay(text string, h transport.ReplayHandler) (transport.ReplaySocket, error) {
	what := "replay " + text
	if l.closing {
		return nil, fmt.Errorf("%s: %w", what, transport.ErrClosed)
	}
	e, err := parseEndpoint(text, false)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	r := &replay{ReplayHandler: h}
	r.socket, err = l.newSocket(zmq4.DEALER, what, e, r, socketOptions{monitored: true}, func(zs *zmq4.Socket, target string) error {
		// No high-water mark: the other side drops what does not fit, end marker
		// included, and says nothing.
		if err := errors.Join(e.tune(zs, 0, defaultMaxMessage), zs.SetRcvhwm(0)); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return e.connect(zs, target)
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// errNotOpen: the socket had to be replaced, and that has not worked yet.
var errNotOpen = errors.New("socket is not open")

// Request implements transport.ReplaySocket.
func (r *replay) Request(start uint64) error {
	if r.closed {
		return fmt.Errorf("%s: request: %w", r.what, transport.ErrClosed)
	}
	if !r.stands {
		r.waiting = append(r.waiting, start)
		return nil
	}
	if err := r.send(start); err != nil {
		return fmt.Errorf("%s: request: %w", r.what, err)
	}
	return nil
}

func (r *replay) send(start uint64) error {
	if r.zs == nil {
		return errNotOpen
	}
	seq := sequence(start)
	if err := sendAll(r.raw, nil, seq[:]); err != nil {
		return err
	}
	// Sending has libzmq work off its commands, so a message may have been signalled
	// for the last time.
	r.loop.enqueue(r.socket)
	return nil
}
