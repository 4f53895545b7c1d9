package sim

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/chaos/envelope"
	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport"
	eventengine "github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// held has, for every prompt, a bit for each block in the device and the host tier.
type held [numPrompts][2]uint64

// engine is a worker that the driver moves. Everything but its history is the driver's.
type engine struct {
	w        *world
	number   int
	id       string
	format   encode.Format
	endpoint string
	replay   string
	pub      transport.Publisher
	seq      uint64
	frozen   bool
	enrolled time.Time // when it was last registered in the end

	// said is what a reader knows who has every batch since the last that is lost for
	// good. Its one holder is the engine.
	said    *model.Model[string]
	pending []encode.Event

	markers []*prompt // by partition; held now
	number0 uint32    // of the last marker
	mark    *mark     // the latest, until it is acknowledged
	lives   []life    // as they were seen, the latest last

	history
}

// mark is a state that waits to be seen everywhere.
type mark struct {
	state   int
	markers []*prompt
}

// life of an engine's slot, and when the driver first saw it.
type life struct {
	slot  uint32
	id    uint64
	seen  time.Time
	sound bool // see world.sound
}

// history is what one engine held, state by state. A state is appended before that is
// published which brings it about.
type history struct {
	mu struct {
		sync.Mutex
		states []held
		begins []int  // states from which on a reader that begins knows everything
		acked  int    // last state that is surely applied
		life   uint64 // in which it was
	}
}

func (h *history) begin(s held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.states = append(h.mu.states, s)
}

// beginAnew appends the empty state, before which nobody can look back.
func (h *history) beginAnew() {
	h.begin(held{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.begins = append(h.mu.begins, len(h.mu.states)-1)
}

// origin returns the last state at or before one from which a replay can begin.
func (h *history) origin(state int) (at int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.mu.begins {
		if b <= state {
			at = b
		}
	}
	return at
}

func (h *history) last() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.states) - 1
}

// ack says that everything up to state n has been seen to be applied.
func (h *history) ack(n int, life uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.acked, h.mu.life = n, life
}

// since is where a query begins.
type since struct {
	state int
	life  uint64
}

func (h *history) acked() since {
	h.mu.Lock()
	defer h.mu.Unlock()
	return since{h.mu.acked, h.mu.life}
}

// bounds returns the tier walk (device, then host) of a prompt at least and at most for
// a query that began when from was acknowledged and has ended.
func (h *history) bounds(from, prompt int) (least, most [2]int, moving bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	least, most = envelope.Bounds(func(yield func(envelope.Moment) bool) {
		for _, s := range h.mu.states[from:] {
			if !yield(s[prompt]) {
				return
			}
		}
	})
	return least, most, len(h.mu.states)-from > 1
}

var formats = []encode.Format{encode.VLLMMap, encode.SGLangMap, encode.VLLMArray, encode.SGLangArray}

func (w *world) newEngine(number int) *engine {
	e := &engine{
		w: w, number: number, id: fmt.Sprint("e", number), format: formats[number%len(formats)],
		endpoint: fmt.Sprint("engine-", number), replay: fmt.Sprint("engine-", number, "-replay"),
		said: model.New[string](model.Config{}),
	}
	e.begin(held{})
	e.open()
	return e
}

func (e *engine) open() {
	pub, err := e.w.net.mem.NewPublisher(transport.PublisherConfig{Endpoint: e.endpoint, ReplayEndpoint: e.replay, FourFrames: true})
	if err != nil {
		e.w.fail("engine %s: %v", e.id, err)
		return
	}
	e.pub = pub
}

func (e *engine) check(what string, err error) {
	if err != nil {
		e.w.fail("engine %s: %s: %v", e.id, what, err)
	}
}

func (e *engine) registration() catalog.Registration {
	return catalog.Registration{
		Instance: e.id, Group: groupKey, BlockSize: blockTokens, Endpoint: e.endpoint, ReplayEndpoint: e.replay,
	}
}

// state is what a reader of the stream must credit.
func (e *engine) state() (s held) {
	for i, p := range e.w.prompts {
		for b, tiers := range e.said.Tiers(e.id, p.locals) {
			s[i][0] |= uint64(tiers>>indexer.Device&1) << b
			s[i][1] |= uint64(tiers>>indexer.Host&1) << b
		}
	}
	return s
}

// store adds a store of blocks [from, to) of a prompt to the batch.
func (e *engine) store(p *prompt, from, to int, tier indexer.Tier) {
	ev := encode.Event{
		Kind: eventengine.Stored, Hashes: p.engines[from:to], Medium: e.format.Medium(tier), Group: -1, SpecKind: "full_attention",
		Tokens: p.tokens[from*blockTokens : to*blockTokens], BlockSize: blockTokens,
	}
	said := model.Event{Kind: model.Stored, Tier: int(tier), Engines: p.engines[from:to], Locals: p.locals[from:to]}
	if from > 0 {
		ev.HasParent, ev.Parent = true, p.engines[from-1]
		said.HasParent, said.Parent = true, p.engines[from-1]
	}
	e.add(ev, said)
}

// add puts an event into the batch. It counts from now on, a little before it is sent.
func (e *engine) add(ev encode.Event, said model.Event) {
	e.pending = append(e.pending, ev)
	e.said.Apply(e.id, said)
	e.begin(e.state())
}

// remove adds a removal of blocks of a prompt to the batch.
func (e *engine) remove(tier indexer.Tier, hashes ...uint64) {
	e.add(encode.Event{Kind: eventengine.Removed, Hashes: hashes, Medium: e.format.Medium(tier), Group: -1},
		model.Event{Kind: model.Removed, Tier: int(tier), Engines: hashes})
}

func (e *engine) clear() {
	e.add(encode.Event{Kind: eventengine.Cleared, Group: -1}, model.Event{Kind: model.Cleared, Tier: model.AllTiers})
	e.markers = nil
}

// random adds something that an engine could do to the batch.
func (e *engine) random(rng *rand.Rand) {
	p := e.w.prompts[rng.IntN(numPrompts)]
	tier := indexer.Device
	if rng.IntN(4) == 0 {
		tier = indexer.Host
	}
	if rng.IntN(100) < 60 {
		from := 0
		// Below a block that it has told of: what waits for its parent does not outlive a
		// takeover, which only lowers scores, and would be no fault.
		if at := rng.IntN(promptBlocks); rng.IntN(3) == 0 && (at == 0 || e.said.Lookup(e.id, p.engines[at-1]) == model.Held) {
			from = at
		}
		e.store(p, from, from+1+rng.IntN(promptBlocks-from), tier)
		return
	}
	var gone []uint64
	if e.w.cfg.Holes {
		for range 1 + rng.IntN(3) {
			gone = append(gone, p.engines[rng.IntN(promptBlocks)])
		}
		e.remove(tier, gone...)
		return
	}
	// Leaves first: what lies below a hole does not outlive a takeover as a whole.
	deepest := e.deepest(p)
	for at := deepest; at >= 0 && at > deepest-3; at-- {
		if at < sharedBlocks && e.deepest(e.w.sibling(p)) > at {
			break
		}
		if tiers := e.said.Tiers(e.id, p.locals)[at]; tiers != 1<<tier {
			tier = indexer.Tier(bits.TrailingZeros8(tiers))
			if tiers&(tiers-1) != 0 {
				e.remove(tier, p.engines[at])
				return
			}
		}
		e.remove(tier, p.engines[at])
		if rng.IntN(2) == 0 {
			return
		}
	}
}

// deepest returns the place of the last block of a prompt that the engine has told of; -1
// = there is none.
func (e *engine) deepest(p *prompt) int {
	tiers := e.said.Tiers(e.id, p.locals)
	for at := len(tiers) - 1; at >= 0; at-- {
		if tiers[at] != 0 {
			return at
		}
	}
	return -1
}

// addMarkers adds a new marker for every partition in place of the old ones, which ends
// the batch, and has it awaited. The state that counts begins with the payload.
func (e *engine) addMarkers() {
	var old []uint64
	for _, m := range e.markers {
		old = append(old, m.engines[0])
	}
	e.markers = nil
	if len(old) > 0 {
		e.remove(indexer.Device, old...)
	}
	for p := range e.w.cfg.Partitions {
		m := marker(e.w.layout, e.number, p, &e.number0)
		e.markers = append(e.markers, m)
		e.store(m, 0, 1, indexer.Device)
	}
	e.mark = &mark{markers: e.markers}
}

// payload ends the batch.
func (e *engine) payload() []byte {
	out := encode.Append(nil, e.format, &encode.Batch{Time: float64(time.Now().UnixMicro()) / 1e6, Events: e.pending})
	e.pending = nil
	if e.mark != nil && e.mark.state == 0 {
		e.mark.state = e.last()
	}
	return out
}

// send publishes the batch.
func (e *engine) send() {
	e.w.counts.Batches++
	if e.w.cfg.Log != nil {
		e.w.debugf("engine %s publishes %d:%s", e.id, e.seq, e.text())
	}
	e.check("publish", e.pub.Publish("", e.seq, e.payload()))
	e.seq++
}

// text tells the batch.
func (e *engine) text() string {
	var b strings.Builder
	for _, ev := range e.pending {
		fmt.Fprintf(&b, " %v %s %x below %x;", ev.Kind, ev.Medium, ev.Hashes, ev.Parent)
	}
	return b.String()
}

// withhold keeps the batch for replay and does not send it.
func (e *engine) withhold() {
	e.check("record", e.pub.Record("", e.seq, e.payload()))
	e.seq++
}

// lose makes a batch that nobody will ever see. What was said before is void for those
// who find out: they cannot know what it took away.
func (e *engine) lose() {
	e.payload()
	e.seq++
	e.said.Remove(e.id)
	e.markers, e.mark = nil, nil
	e.beginAnew()
}

// forget makes the engine a new one: nothing held, nothing to replay.
func (e *engine) forget() {
	e.markers, e.mark, e.pending = nil, nil, nil
	e.seq = 0
	e.said.Remove(e.id)
	e.beginAnew()
}

// restartInPlace is a restart that nobody can see at the sockets.
func (e *engine) restartInPlace() {
	e.forget()
	e.check("forget replay", e.pub.ForgetReplay())
}

// restart opens new sockets at the same place.
func (e *engine) restart() {
	e.check("close", e.pub.Close())
	e.forget()
	e.open()
}
