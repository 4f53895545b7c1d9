package router

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"sync"

	"github.com/kvcluster/kvcluster/router/internal/wire"
)

// hashProfile is how a vLLM engine makes its block hashes, as Mooncake's msgpack clients
// register it. The index does not need it (it hashes tokens itself); it is checked, kept
// and shown, so that such clients find what they expect.
type hashProfile struct {
	strategy, algorithm, seed, projection string
}

// readProfile reads a hash_profile. The seed must be a string: "0", "00" and 0 differ.
func readProfile(v wire.Value) (*hashProfile, error) {
	p := &hashProfile{}
	err := v.Object(func(key []byte) (err error) {
		var to *string
		switch string(key) {
		case "strategy":
			to = &p.strategy
		case "algorithm":
			to = &p.algorithm
		case "python_hash_seed":
			to = &p.seed
		case "index_projection":
			to = &p.projection
		default:
			return v.Skip()
		}
		if *to, err = v.String(); err != nil {
			return &fieldError{string(key), err}
		}
		return nil
	})
	return p, err
}

func (p *hashProfile) check() error {
	if p == nil {
		return nil
	}
	bad := func(name, got, want string) error {
		return &apiError{status: http.StatusBadRequest, text: fmt.Sprintf("unsupported %s `%s`: want %s", name, got, want), field: "hash_profile." + name}
	}
	switch {
	case p.strategy != "vllm_v1":
		return bad("strategy", p.strategy, "vllm_v1")
	case p.algorithm != "sha256_cbor":
		return bad("algorithm", p.algorithm, "sha256_cbor")
	case p.projection != "low64_be":
		return bad("index_projection", p.projection, "low64_be")
	case p.seed == "":
		return bad("python_hash_seed", p.seed, "the text of PYTHONHASHSEED of the engines")
	}
	return nil
}

// rootDigest returns the hash that every chain of the engine begins with: SHA-256 of the
// seed as a canonical CBOR text, in hex.
func (p *hashProfile) rootDigest() string {
	sum := sha256.Sum256(append(cborTextHead(len(p.seed)), p.seed...))
	return hex.EncodeToString(sum[:])
}

// cborTextHead returns the shortest head of a CBOR text of n bytes.
func cborTextHead(n int) []byte {
	const text = 3 << 5
	switch {
	case n < 24:
		return []byte{text | byte(n)}
	case n < 1<<8:
		return []byte{text | 24, byte(n)}
	case n < 1<<16:
		return []byte{text | 25, byte(n >> 8), byte(n)}
	}
	return []byte{text | 26, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

func (p *hashProfile) fields() map[string]any {
	return map[string]any{
		"strategy": p.strategy, "algorithm": p.algorithm, "python_hash_seed": p.seed,
		"index_projection": p.projection, "root_digest": p.rootDigest(),
	}
}

// profiles keeps the hash profiles registered through this node, by instance and rank.
// They are for display only and not replicated.
type profiles struct {
	mu struct {
		sync.Mutex
		of map[profileKey]*hashProfile
	}
}

type profileKey struct {
	instance string
	rank     uint32
}

func (p *profiles) put(instance string, rank uint32, h *hashProfile) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.of == nil {
		p.mu.of = map[profileKey]*hashProfile{}
	}
	p.mu.of[profileKey{instance, rank}] = h
}

func (p *profiles) get(instance string, rank uint32) *hashProfile {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.of[profileKey{instance, rank}]
}

// keep forgets the profiles that the test refuses.
func (p *profiles) keep(live func(instance string, rank uint32) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.mu.of {
		if !live(k.instance, k.rank) {
			delete(p.mu.of, k)
		}
	}
}
