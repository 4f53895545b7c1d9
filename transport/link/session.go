package link

import "fmt"

// Session names one run of numbered frames from a sender to a receiver. A new boot
// id on either side makes a new one, and so does the loss of an old one. Numbers of
// frames start at 1 in each. Sessions are compared with ==.
type Session struct {
	Peer         string // the other side: the sender of an incoming one, the receiver of an outgoing one
	SenderBoot   uint64
	ReceiverBoot uint64
	// Number is given by the receiver, and rises with every session that it grants in
	// this boot: so of two sessions between the same two boots it is known which came
	// later, whatever the network does to the order of messages.
	Number uint64
}

// String is for logs.
func (s Session) String() string {
	return fmt.Sprintf("%s#%d(%x>%x)", s.Peer, s.Number, s.SenderBoot, s.ReceiverBoot)
}

// Handler gets what happens on all links of a hub, one call at a time. It must not
// wait: what comes from other peers waits with it. It may call Send and Ack, and
// must not call Call.
type Handler interface {
	// OnSession: the peer sends to us in a new session. What an older session of this
	// peer carried is over; nothing of it comes any more.
	OnSession(s Session)
	// OnFrame: the next frame of a session, exactly once and in order. payload is valid
	// until it returns. The frame is acknowledged by Hub.Ack, when it has been applied.
	OnFrame(s Session, n uint64, payload []byte)
	// OnSilence: there is no fresh proof that the sender still counts on us. It may
	// acknowledge operations without us, so what the session carries is not current.
	OnSilence(s Session)
	// OnResume: it is again, since every frame that the sender had accepted when it gave
	// fresh proof has been handed to OnFrame.
	OnResume(s Session)

	// OnPeer: an outgoing session stands and can be sent to; or it is over, and what it
	// has not acknowledged will never be.
	OnPeer(s Session, up bool)
	// OnAck: the receiver has applied every frame up to n.
	OnAck(s Session, n uint64)
	// OnLapse(true): the receiver of an outgoing session, which may be over, now
	// certainly had its OnSilence, so operations may be acknowledged without it. It is
	// called once for each session that ends, and for one that does not when nothing is
	// heard of the receiver. OnLapse(false): the receiver is about to become current
	// again; from this call on nothing may be acknowledged without it.
	OnLapse(s Session, lapsed bool)
}
