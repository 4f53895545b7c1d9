package router

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/router/internal/wire"
)

// FuzzQueryBody compares the reader of /query bodies with encoding/json: whatever both
// take must mean the same, and what one refuses for its shape the other must not take.
func FuzzQueryBody(f *testing.F) {
	for _, s := range []string{
		`{"token_ids":[1,2,3],"model_name":"m","routing_group":"g","lora_name":null,"cache_salt":"s"}`,
		`{"model":"m","token_ids":[],"block_size":16,"tenant_id":"t","instance_id":7}`, `{"token_ids":[1],"token_ids":[2, 3]}`,
		`{"model_name":"\u0061\n","unknown":{"a":[1,{}]},"lora_id":-1}`, `{"block_size":"x","model_name":"m"}`, `{"instance_id":"a"}`, `[]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		q := &request{}
		err := queryBody.parse(wire.NewJSON(data), q)
		var fields map[string]json.RawMessage
		stdErr := json.Unmarshal(data, &fields)
		if err != nil {
			return // that errors are right is what the tables say; here only that nothing wrong is taken
		}
		if stdErr != nil || fields == nil {
			t.Fatalf("%q: taken, encoding/json says %v", data, stdErr)
		}
		for f, name := range fieldNames {
			raw, there := fields[name]
			there = there && queryBody.accept.has(field(f))
			if queryBody.mooncake.has(field(f)) && q.has(fModelName) {
				continue
			}
			if there && queryBody.nullable.has(field(f)) && bytes.Equal(raw, []byte("null")) {
				there = false
			}
			if q.has(field(f)) != there {
				t.Fatalf("%q: %s present %v, want %v", data, name, q.has(field(f)), there)
			}
			if there {
				compareField(t, q, field(f), raw)
			}
		}
	})
}

func compareField(t *testing.T, q *request, f field, raw json.RawMessage) {
	t.Helper()
	var s string
	var n int64
	var ids []uint32
	same := true
	switch f {
	case fModelName, fModelname, fModel:
		same = json.Unmarshal(raw, &s) == nil && s == q.models[f]
	case fRoutingGroup:
		same = json.Unmarshal(raw, &s) == nil && s == q.routingGroup
	case fTenant:
		same = json.Unmarshal(raw, &s) == nil && s == q.tenant
	case fLora:
		same = json.Unmarshal(raw, &s) == nil && s == q.lora
	case fCacheSalt:
		same = json.Unmarshal(raw, &s) == nil && s == q.cacheSalt
	case fBlockSize:
		same = json.Unmarshal(raw, &n) == nil && n == int64(q.blockSize)
	case fLoraID:
		same = json.Unmarshal(raw, &n) == nil && n == q.loraID
	case fTokens:
		same = json.Unmarshal(raw, &ids) == nil && slices.Equal(ids, q.tokens)
	case fInstance:
		if json.Unmarshal(raw, &s) != nil {
			s = string(raw)
		}
		same = s == q.instance
	}
	if !same {
		t.Fatalf("%s: %s, read %+v", fieldNames[f], raw, q)
	}
}
