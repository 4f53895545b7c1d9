package driver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// ErrConfig is wrapped by errors about values that cannot be used.
var ErrConfig = errors.New("invalid driver configuration")

// Policy says how requests find their worker.
type Policy string

// The policies.
const (
	// Sticky sends all turns of a session to one worker, chosen at random.
	Sticky Policy = "sticky"
	// Random chooses a worker for every request.
	Random Policy = "random"
)

// ParsePolicy reads a policy from a flag.
func ParsePolicy(s string) (Policy, error) {
	switch p := Policy(s); p {
	case Sticky, Random:
		return p, nil
	}
	return "", fmt.Errorf("%w: policy %q, want %s or %s", ErrConfig, s, Sticky, Random)
}

// Config determines a plan together with its trace. The zero value of Seed and
// Policy mean 42 and Sticky.
type Config struct {
	Workers int
	Seed    uint64
	Policy  Policy
	// LoraShare and SaltShare are the shares (0..1) of sessions whose requests carry
	// a LoRA adapter, one of Loras names, or a cache salt, one of Salts.
	LoraShare, SaltShare float64
	Loras, Salts         int // 0 = 4 each
}

// SetDefaults fills in what was left at zero.
func (c *Config) SetDefaults() {
	if c.Seed == 0 {
		c.Seed = 42
	}
	if c.Policy == "" {
		c.Policy = Sticky
	}
	if c.Loras == 0 {
		c.Loras = 4
	}
	if c.Salts == 0 {
		c.Salts = 4
	}
}

// Validate names the first value that cannot be used.
func (c *Config) Validate() error {
	if c.Workers < 1 {
		return fmt.Errorf("%w: %d workers, want at least 1", ErrConfig, c.Workers)
	}
	if _, err := ParsePolicy(string(c.Policy)); err != nil {
		return err
	}
	if !(c.LoraShare >= 0 && c.LoraShare <= 1) {
		return fmt.Errorf("%w: LoRA share %g, want 0 to 1", ErrConfig, c.LoraShare)
	}
	if !(c.SaltShare >= 0 && c.SaltShare <= 1) {
		return fmt.Errorf("%w: salt share %g, want 0 to 1", ErrConfig, c.SaltShare)
	}
	if c.Loras < 1 || c.Loras > 1<<16-1 || c.Salts < 1 || c.Salts > 1<<16-1 {
		return fmt.Errorf("%w: %d LoRA names and %d salts, want 1 to 65535", ErrConfig, c.Loras, c.Salts)
	}
	return nil
}

// Namespace is what changes the keys of a request's blocks; empty = none.
type Namespace struct{ Lora, Salt string }

// Seed is the seed of the namespace's local hashes.
func (n Namespace) Seed() uint64 { return blockhash.NamespaceSeed(n.Lora, n.Salt) }

// Plan spreads a trace over workers. It is immutable.
type Plan struct {
	trace   *trace.Trace
	cfg     Config
	worker  []uint32 // by request
	byTime  [][]uint32
	lora    []uint16 // by session; 0 = none
	salt    []uint16
	outputs uint64
}

// New makes a plan.
func New(t *trace.Trace, cfg Config) (*Plan, error) {
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Plan{
		trace: t, cfg: cfg,
		worker: make([]uint32, len(t.Requests)), byTime: make([][]uint32, cfg.Workers),
		outputs: mix(cfg.Seed),
	}
	// Two streams, so that the shares do not change who serves what.
	place := rand.New(rand.NewPCG(cfg.Seed, 1))
	names := rand.New(rand.NewPCG(cfg.Seed, 2))
	sessions := t.Sessions()
	home := make([]uint32, sessions)
	p.lora, p.salt = make([]uint16, sessions), make([]uint16, sessions)
	for s := range sessions {
		home[s] = uint32(place.IntN(cfg.Workers))
		p.lora[s] = share(names, cfg.LoraShare, cfg.Loras)
		p.salt[s] = share(names, cfg.SaltShare, cfg.Salts)
	}
	for i := range t.Requests {
		w := home[t.Requests[i].Session]
		if cfg.Policy == Random {
			w = uint32(place.IntN(cfg.Workers))
		}
		p.worker[i] = w
		p.byTime[w] = append(p.byTime[w], uint32(i))
	}
	for _, list := range p.byTime {
		slices.SortStableFunc(list, func(a, b uint32) int {
			x, y := t.Requests[a].Time, t.Requests[b].Time
			switch {
			case x < y:
				return -1
			case x > y:
				return 1
			}
			return 0
		})
	}
	return p, nil
}

// share returns 0, or with the given chance a number from 1 to n. It always draws
// twice, so that one session does not shift the next.
func share(r *rand.Rand, chance float64, n int) uint16 {
	hit, k := r.Float64() < chance, r.IntN(n)
	if !hit {
		return 0
	}
	return uint16(k + 1)
}

// Trace returns the trace of the plan.
func (p *Plan) Trace() *trace.Trace { return p.trace }

// Config returns the configuration, defaults filled in.
func (p *Plan) Config() Config { return p.cfg }

// Worker returns the worker of request i.
func (p *Plan) Worker(i int) int { return int(p.worker[i]) }

// Requests returns the requests of worker w in order of time. Not to be changed.
func (p *Plan) Requests(w int) []uint32 { return p.byTime[w] }

// Namespace returns the namespace of request i.
func (p *Plan) Namespace(i int) Namespace {
	s := p.trace.Requests[i].Session
	var n Namespace
	if k := p.lora[s]; k > 0 {
		n.Lora = "adapter-" + strconv.Itoa(int(k))
	}
	if k := p.salt[s]; k > 0 {
		n.Salt = "tenant-" + strconv.Itoa(int(k))
	}
	return n
}

// Tokens returns the number of tokens of request i: prompt and, with output, what
// the worker generates.
func (p *Plan) Tokens(i int, output bool) int {
	n := p.trace.PromptTokens(i)
	if output {
		n += int(p.trace.Requests[i].Output)
	}
	return n
}

// AppendTokens appends tokens from..to-1 of request i, the generated ones behind
// the prompt included.
func (p *Plan) AppendTokens(dst []uint32, i, from, to int) []uint32 {
	r := &p.trace.Requests[i]
	prompt := p.trace.PromptTokens(i)
	for at := from; at < to; {
		if at >= prompt {
			dst = append(dst, p.outputToken(i, at-prompt))
			at++
			continue
		}
		end := min(to, prompt, (at/p.trace.TokensPerID+1)*p.trace.TokensPerID)
		id := r.IDs[at/p.trace.TokensPerID]
		for ; at < end; at++ {
			dst = append(dst, id)
		}
	}
	return dst
}

// outputToken is token k that request i generates: above 2^31, so that it is no id
// of the trace in practice, and different for every request.
func (p *Plan) outputToken(i, k int) uint32 {
	return uint32(mix(p.outputs^uint64(i)<<32^uint64(k))) | 1<<31
}

// Prompt is what a gateway would ask for.
type Prompt struct {
	Request int
	Worker  int // that served it
	Namespace
	Tokens []uint32
}

// Prompt returns the prompt of request i, without generated tokens.
func (p *Plan) Prompt(i int) Prompt {
	return Prompt{
		Request: i, Worker: p.Worker(i), Namespace: p.Namespace(i),
		Tokens: p.AppendTokens(nil, i, 0, p.Tokens(i, false)),
	}
}

// AppendLocals appends the local hashes of the complete blocks of request i's prompt.
func (p *Plan) AppendLocals(dst []uint64, i, blockSize int) []uint64 {
	tokens := p.AppendTokens(nil, i, 0, p.Tokens(i, false))
	return blockhash.AppendTokens(dst, tokens, blockSize, p.Namespace(i).Seed())
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	z := x + 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
