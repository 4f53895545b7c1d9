package router

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"

	"github.com/kvcluster/kvcluster/router/internal/wire"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// hashProfile is how a vLLM engine makes its block hashes, as Mooncake's msgpack clients
// register it. The index does not need it (it hashes tokens itself); it is checked, kept
// with the registration and shown, so that such clients find what they expect.
type hashProfile struct {
	strategy, algorithm, seed, projection string
}

// All that a profile may be, but for the seed.
const (
	onlyStrategy   = "vllm_v1"
	onlyAlgorithm  = "sha256_cbor"
	onlyProjection = "low64_be"
)

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
	case p.strategy != onlyStrategy:
		return bad("strategy", p.strategy, onlyStrategy)
	case p.algorithm != onlyAlgorithm:
		return bad("algorithm", p.algorithm, onlyAlgorithm)
	case p.projection != onlyProjection:
		return bad("index_projection", p.projection, onlyProjection)
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

// profileOf returns the profile that a rank was registered with, nil when it had none.
func profileOf(r catalog.Registration) *hashProfile {
	if r.HashSeed == "" {
		return nil
	}
	return &hashProfile{strategy: onlyStrategy, algorithm: onlyAlgorithm, seed: r.HashSeed, projection: onlyProjection}
}
