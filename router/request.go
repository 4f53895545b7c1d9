package router

import (
	"fmt"

	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// dialect is the API that a client was written for. The request decides it.
type dialect uint8

const (
	dynamo       dialect = iota // model_name
	mooncakeA                   // model, first draft: answers under "data"
	mooncakeB                   // model or modelname: answers under the tenant
	mooncakeC                   // msgpack body: answers under "instances", in msgpack
	numDialects  = iota
	noLora       = -1 // lora_id of the base model
	defaultGroup = "default"
)

func (d dialect) mooncake() bool { return d != dynamo }

// request is the union of all request bodies. It is pooled with its slices.
type request struct {
	present fieldSet
	msgpack bool
	dialect dialect

	models       [3]string // model_name, modelname, model
	routingGroup string
	tenant       string
	instance     string
	rank         uint32
	blockSize    uint32
	endpoint     string
	replay       string
	lora         string
	loraID       int64
	cacheSalt    string
	salts        [2]string // additional_salt, additionalsalt
	engineType   string
	topic        string
	url          string
	cacheGroup   int64
	countCopies  bool
	profile      *hashProfile

	tokens []uint32
	hashes [3][]uint64 // block_hashes (local), seq_hashes, block_hash (both sequence)
}

func (q *request) has(f field) bool { return q.present.has(f) }

// reset makes the request empty and keeps the memory of its slices.
func (q *request) reset() {
	*q = request{tokens: q.tokens[:0], hashes: [3][]uint64{q.hashes[0][:0], q.hashes[1][:0], q.hashes[2][:0]}}
}

// resolve decides the dialect and refuses one thing said twice with different values.
func (q *request) resolve() error {
	for f := fModelName; f <= fModel; f++ {
		for g := f + 1; g <= fModel; g++ {
			if q.has(f) && q.has(g) && q.models[f] != q.models[g] {
				return ambiguous(f, g)
			}
		}
	}
	if q.has(fAdditionalSalt) && q.has(fAdditionalsalt) && q.salts[0] != q.salts[1] {
		return ambiguous(fAdditionalSalt, fAdditionalsalt)
	}
	switch {
	case q.msgpack:
		q.dialect = mooncakeC
	case q.has(fModelName):
		q.dialect = dynamo
	case q.has(fModelname) || q.has(fModel):
		q.dialect = mooncakeB
	}
	if q.dialect.mooncake() && q.has(fTenant) && q.has(fRoutingGroup) && q.tenant != q.routingGroup {
		return ambiguous(fTenant, fRoutingGroup)
	}
	return nil
}

func ambiguous(f, g field) error {
	return &apiError{status: 400, text: fmt.Sprintf("`%s` and `%s` say different things", fieldNames[f], fieldNames[g]), field: fieldNames[g]}
}

// model returns the model's name under whichever field it came.
func (q *request) model() string {
	for f := fModelName; f <= fModel; f++ {
		if q.has(f) {
			return q.models[f]
		}
	}
	return ""
}

// group returns the index group that the request is about. In the Mooncake dialect the
// tenant is the routing group.
func (q *request) group() catalog.GroupKey {
	k := catalog.GroupKey{Model: q.model(), RoutingGroup: defaultGroup}
	switch {
	case q.has(fRoutingGroup):
		k.RoutingGroup = q.routingGroup
	case q.dialect.mooncake() && q.has(fTenant):
		k.RoutingGroup = q.tenant
	}
	return k
}

// seed returns the hash seed of the query's namespace.
func (q *request) seed() (uint64, error) {
	lora := q.lora
	if q.dialect.mooncake() && q.has(fLoraID) && q.loraID != noLora {
		if q.has(fLora) {
			return 0, &apiError{status: 400, text: "`lora_id` and `lora_name` exclude each other", field: "lora_id"}
		}
		return 0, &apiError{
			status: 400, field: "lora_id",
			text: "`lora_id` is not a name: engines announce adapters by `lora_name`, send that",
		}
	}
	return blockhash.NamespaceSeed(lora, q.cacheSalt), nil
}

// require refuses a request that lacks a field, in the order of the fields.
func (q *request) require(fs ...field) error {
	for _, f := range fs {
		if f == fModelName && q.present&modelFields != 0 {
			continue
		}
		if !q.has(f) {
			return &shapeError{"missing field `" + fieldNames[f] + "`"}
		}
	}
	return nil
}
