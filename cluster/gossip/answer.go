package gossip

import (
	"errors"
	"log/slog"
	"net"
	"time"
)

// answer serves one greeting.
func (g *Gossip) answer(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(g.cfg.DialTimeout))
	ask, err := readGreeting(conn)
	if err != nil && !errors.Is(err, errGreeting) {
		return
	}
	g.stats.greetings.Add(1)
	reply := greeting{answer: true, label: g.cfg.Label, time: g.cfg.Clock(), verdict: malformed}
	switch {
	case err != nil || ask.answer:
	case ask.version != greetingVersion:
		reply.verdict = otherVersion
	case ask.label != g.cfg.Label:
		reply.verdict = otherLabel
	default:
		reply.verdict = ask.open(g.cfg.Key)
	}
	if reply.verdict == welcome {
		reply.self, _ = g.table.own()
		for _, p := range g.table.rivals(ask.self) {
			if len(reply.rivals) < maxRivals {
				reply.rivals = append(reply.rivals, rival{p.Address, p.Meta})
			}
		}
	} else {
		g.stats.refused.Add(1)
		g.log.tell(slog.LevelWarn, "refused "+reply.verdict.String(), "a node that wanted to join was turned away",
			"from", conn.RemoteAddr().String(), "reason", reply.verdict.String(), "its_label", ask.label)
	}
	if raw, err := reply.append(g.cfg.Key); err == nil {
		_, _ = conn.Write(raw)
	}
}

func (v verdict) String() string {
	switch v {
	case welcome:
		return "welcome"
	case otherLabel:
		return "another cluster label"
	case needsKey:
		return "it has no key"
	case hasNoKey:
		return "it has a key and there is none here"
	case wrongKey:
		return "another key"
	case otherVersion:
		return "another version"
	}
	return "not understood"
}
