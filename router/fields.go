package router

import (
	"errors"
	"fmt"
	"math"

	"github.com/kvcluster/kvcluster/router/internal/wire"
)

// field is one name that a request body may have. Names of one thing in different
// dialects are different fields here; merging them is request.resolve's work.
type field uint

const (
	fModelName field = iota
	fModelname
	fModel
	fRoutingGroup
	fTenant
	fInstance
	fRank
	fBlockSize
	fEndpoint
	fReplay
	fLora
	fLoraID
	fCacheSalt
	fAdditionalSalt
	fAdditionalsalt
	fType
	fTokens
	fBlockHashes
	fSeqHashes
	fBlockHash
	fURL
	fCacheGroup
	fHashProfile
	fTopic
	fCountCopies
	numFields
)

var fieldNames = [numFields]string{
	"model_name", "modelname", "model", "routing_group", "tenant_id", "instance_id", "dp_rank", "block_size",
	"endpoint", "replay_endpoint", "lora_name", "lora_id", "cache_salt", "additional_salt", "additionalsalt", "type",
	"token_ids", "block_hashes", "seq_hashes", "block_hash", "url", "cache_group", "hash_profile", "topic", "count_copies",
}

var fieldByName = func() map[string]field {
	m := make(map[string]field, numFields)
	for f, name := range fieldNames {
		m[name] = field(f)
	}
	return m
}()

// fieldSet is a set of fields.
type fieldSet uint32

func set(fs ...field) (s fieldSet) {
	for _, f := range fs {
		s |= 1 << f
	}
	return s
}

func (s fieldSet) has(f field) bool { return s>>f&1 == 1 }

// body says which fields a route looks at; everything else is ignored, whatever its
// value.
type body struct {
	accept fieldSet
	// nullable fields take null as absent; the others refuse it.
	nullable fieldSet
	// mooncake fields exist in the Mooncake dialect only: a Dynamo client's field of that
	// name is an unknown one, so a wrong type of it counts only when the request turns out
	// to be Mooncake's.
	mooncake fieldSet
}

var (
	modelFields = set(fModelName, fModelname, fModel)

	registerBody = body{
		accept: modelFields | set(fRoutingGroup, fTenant, fInstance, fRank, fBlockSize, fEndpoint, fReplay, fLora,
			fAdditionalSalt, fAdditionalsalt, fType, fCacheGroup, fHashProfile, fTopic, fCountCopies),
		nullable: set(fRank, fReplay, fLora, fAdditionalSalt, fAdditionalsalt, fCacheGroup, fHashProfile, fTopic, fCountCopies),
		mooncake: set(fType, fCacheGroup, fHashProfile),
	}
	unregisterBody = body{
		accept:   modelFields | set(fRoutingGroup, fTenant, fInstance, fRank, fType, fLora, fBlockSize),
		nullable: set(fRoutingGroup, fTenant, fRank, fLora, fBlockSize, fType),
		mooncake: set(fTenant, fType, fLora, fBlockSize),
	}
	queryBody = body{
		accept:   modelFields | set(fTokens, fRoutingGroup, fTenant, fLora, fCacheSalt, fLoraID, fInstance, fBlockSize),
		nullable: set(fLora, fCacheSalt, fLoraID, fInstance),
		mooncake: set(fLoraID, fInstance, fBlockSize),
	}
	queryByHashBody = body{
		accept: modelFields | set(fBlockHashes, fSeqHashes, fBlockHash, fRoutingGroup, fTenant, fLora, fCacheSalt, fLoraID,
			fInstance, fBlockSize),
		nullable: set(fLora, fCacheSalt, fLoraID, fInstance),
		mooncake: set(fLoraID, fInstance, fBlockSize, fLora),
	}
	explainBody = body{
		accept: modelFields | set(fTokens, fBlockHashes, fSeqHashes, fBlockHash, fRoutingGroup, fTenant, fLora, fCacheSalt,
			fInstance, fRank),
		nullable: set(fLora, fCacheSalt, fRank),
	}
	listenerBody = body{accept: set(fInstance, fRank), nullable: set(fRank)}
	peerBody     = body{accept: set(fURL)}
)

// parse reads a whole body into q. Fields are read in the order of the text, so the
// first fault of the text is the one reported; a repeated field counts as its last
// occurrence.
func (b body) parse(v wire.Value, q *request) error {
	var deferred error // first fault of a field that may turn out to be nobody's
	err := v.Object(func(key []byte) error {
		f, known := fieldByName[string(key)]
		if !known || !b.accept.has(f) {
			return v.Skip()
		}
		mark := v.Mark()
		if b.nullable.has(f) && v.Null() {
			q.present &^= set(f)
			return nil
		}
		err := q.read(f, v)
		if err == nil {
			q.present |= set(f)
			return nil
		}
		err = &fieldError{fieldNames[f], err}
		var at *wire.Error
		if b.mooncake.has(f) && errors.As(err, &at) && at.Shape {
			if deferred == nil {
				deferred = err
			}
			v.Reset(mark)
			return v.Skip()
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := v.End(); err != nil {
		return err
	}
	if deferred != nil && !q.has(fModelName) {
		return deferred
	}
	return nil
}

// read reads the value of one field.
func (q *request) read(f field, v wire.Value) (err error) {
	switch f {
	case fModelName, fModelname, fModel:
		q.models[f-fModelName], err = v.String()
	case fRoutingGroup:
		q.routingGroup, err = v.String()
	case fTenant:
		q.tenant, err = v.String()
	case fInstance:
		q.instance, err = v.ID()
	case fRank:
		q.rank, err = uint32Value(v)
	case fBlockSize:
		q.blockSize, err = uint32Value(v)
	case fEndpoint:
		q.endpoint, err = v.String()
	case fReplay:
		q.replay, err = v.String()
	case fLora:
		q.lora, err = v.String()
	case fLoraID:
		q.loraID, err = v.Int()
	case fCacheSalt:
		q.cacheSalt, err = v.String()
	case fAdditionalSalt, fAdditionalsalt:
		q.salts[f-fAdditionalSalt], err = v.String()
	case fType:
		q.engineType, err = v.String()
	case fTokens:
		q.tokens, err = v.Tokens(q.tokens[:0])
	case fBlockHashes, fSeqHashes, fBlockHash:
		i := f - fBlockHashes
		q.hashes[i], err = v.Hashes(q.hashes[i][:0])
	case fURL:
		q.url, err = v.String()
	case fCacheGroup:
		q.cacheGroup, err = v.Int()
	case fHashProfile:
		q.profile, err = readProfile(v)
	case fTopic:
		q.topic, err = v.String()
	case fCountCopies:
		q.countCopies, err = v.Bool()
	}
	return err
}

func uint32Value(v wire.Value) (uint32, error) {
	n, err := v.Uint(math.MaxUint32)
	return uint32(n), err
}

// fieldError adds the name of the field to a fault of its value.
type fieldError struct {
	field string
	err   error
}

func (e *fieldError) Error() string { return fmt.Sprintf("%s: %v", e.field, e.err) }
func (e *fieldError) Unwrap() error { return e.err }
