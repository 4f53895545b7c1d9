package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

// register serves POST /register in both dialects. The checks come in the order of
// Dynamo's: shape, endpoints, then what is registered already.
func (c *call) register() error {
	q, err := c.parse(registerBody, true)
	if err != nil {
		return err
	}
	required := []field{fInstance, fEndpoint, fModelName, fBlockSize}
	if q.dialect.mooncake() {
		required = []field{fEndpoint, fType, fModelname, fInstance, fBlockSize, fRank}
	}
	if err := q.requireRegistration(required); err != nil {
		return err
	}
	if err := catalog.CheckEndpoint(q.endpoint); err != nil {
		return err
	}
	if q.has(fReplay) && q.replay != "" {
		if err := catalog.CheckEndpoint(q.replay); err != nil {
			return &apiError{status: http.StatusBadRequest, text: fmt.Sprintf("invalid replay endpoint `%s`: %v", q.replay, err), field: "replay_endpoint"}
		}
	}
	if err := q.checkRegistration(); err != nil {
		return err
	}
	if q.dialect == mooncakeC {
		if err := c.router.checkService(q); err != nil {
			return err
		}
	}
	reg := q.registration()
	if err := checkNames(&reg); err != nil {
		return err
	}
	if err := c.router.cluster.Register(c.r.Context(), reg); err != nil {
		return err
	}
	if !q.dialect.mooncake() {
		return c.ok(http.StatusCreated)
	}
	return c.reply(http.StatusOK, map[string]any{"status": "registered successfully", "instance_id": q.instance})
}

// requireRegistration is require, but any name of the model will do.
func (q *request) requireRegistration(fs []field) error {
	for _, f := range fs {
		if f <= fModel && q.present&modelFields != 0 {
			continue
		}
		if err := q.require(f); err != nil {
			return err
		}
	}
	return nil
}

// engineTypes are the publishers that Mooncake's clients may name, in lower case. The
// decoder does not depend on it.
var engineTypes = []string{"vllm", "sglang", "mooncake", "tensorrt-llm", "trtllm"}

// maxName bounds each text of a registration, in bytes. Every node keeps it in the log, and
// shows it in lists and labels; the longest model names are paths of a few hundred.
const maxName = 4096

// checkNames refuses texts that are no names.
func checkNames(r *catalog.Registration) error {
	for _, x := range []struct{ field, text string }{
		{"instance_id", r.Instance}, {"model_name", r.Group.Model}, {"routing_group", r.Group.RoutingGroup}, {"endpoint", r.Endpoint},
		{"replay_endpoint", r.ReplayEndpoint}, {"topic", r.Topic}, {"lora_name", r.Lora}, {"salt", r.Salt}, {"type", r.EngineType},
	} {
		if len(x.text) > maxName {
			return &apiError{status: http.StatusBadRequest, text: fmt.Sprintf("%s has %d bytes, at most %d", x.field, len(x.text), maxName), field: x.field}
		}
	}
	return nil
}

// checkRegistration refuses what could only lose data silently.
func (q *request) checkRegistration() error {
	if q.blockSize == 0 {
		return &apiError{status: http.StatusBadRequest, text: "block_size must be above 0", field: "block_size"}
	}
	if !q.dialect.mooncake() {
		return nil
	}
	known := false
	for _, t := range engineTypes {
		known = known || strings.EqualFold(t, q.engineType)
	}
	if !known {
		return &apiError{status: http.StatusBadRequest, text: fmt.Sprintf("unsupported type `%s`: want vLLM, SGLang, Mooncake or TensorRT-LLM", q.engineType), field: "type"}
	}
	if q.has(fCacheGroup) && q.cacheGroup != 0 {
		return &apiError{status: http.StatusBadRequest, text: fmt.Sprintf("unsupported cache_group %d: want 0", q.cacheGroup), field: "cache_group"}
	}
	return q.profile.check()
}

// checkService refuses an endpoint that another instance has, as Mooncake's msgpack
// conductor does.
func (r *Router) checkService(q *request) error {
	for _, s := range r.cluster.View().Sources() {
		if s.Endpoint == q.endpoint && s.Instance != q.instance && s.Topic == q.topic {
			return &apiError{status: http.StatusConflict, text: fmt.Sprintf("endpoint %s already belongs to instance %s", q.endpoint, s.Instance), field: "endpoint"}
		}
	}
	return nil
}

// registration translates the request for the catalog. LoRA name and, for Mooncake, the
// registered salt are the namespace of events that name none.
func (q *request) registration() catalog.Registration {
	reg := catalog.Registration{
		Instance: q.instance, Rank: q.rank, Group: q.group(), BlockSize: q.blockSize,
		Endpoint: q.endpoint, ReplayEndpoint: q.replay, Topic: q.topic,
		Lora: q.lora, EngineType: q.engineType, CountCopies: q.countCopies,
	}
	if q.profile != nil {
		reg.HashSeed = q.profile.seed
	}
	if q.dialect.mooncake() {
		reg.Salt = q.salts[0]
		if q.has(fAdditionalsalt) {
			reg.Salt = q.salts[1]
		}
	}
	return reg
}

// unregister serves POST /unregister in both dialects.
func (c *call) unregister() error {
	q, err := c.parse(unregisterBody, true)
	if err != nil {
		return err
	}
	if !q.dialect.mooncake() && q.present&modelFields == 0 && q.present&set(fType, fLora, fBlockSize) != 0 {
		q.dialect = mooncakeB // fields that only Mooncake's clients send
	}
	if err := q.require(fInstance); err != nil {
		return err
	}
	if q.dialect.mooncake() {
		return c.unregisterService()
	}
	if err := q.require(fModelName); err != nil {
		return err
	}
	u := catalog.Unregistration{Instance: q.instance, Model: q.model()}
	if q.has(fRoutingGroup) {
		u.Group = &q.routingGroup
	}
	if q.has(fRank) {
		u.Rank = &q.rank
	}
	if err := c.router.cluster.Unregister(c.r.Context(), u); err != nil {
		return err
	}
	return c.ok(http.StatusOK)
}

// unregisterService removes what Mooncake calls a service: (instance, tenant, rank), or
// every rank of the instance when none is named. The model may be left out.
func (c *call) unregisterService() error {
	q := c.req
	w, ok := c.router.cluster.View().Worker(q.instance)
	if !ok {
		return &apiError{status: http.StatusNotFound, text: fmt.Sprintf("instance %s not found", q.instance), field: "instance_id"}
	}
	tenant := q.group().RoutingGroup
	u := catalog.Unregistration{Instance: q.instance, Model: w.Group.Key.Model, Group: &tenant}
	if q.present&modelFields != 0 {
		u.Model = q.model()
	}
	removed := []string{}
	for _, r := range w.Ranks {
		if !q.has(fRank) || r.Rank == q.rank {
			removed = append(removed, fmt.Sprintf("%s|%s|%d", q.instance, tenant, r.Rank))
		}
	}
	if q.has(fRank) {
		u.Rank = &q.rank
	}
	if err := c.router.cluster.Unregister(c.r.Context(), u); err != nil {
		return err
	}
	return c.reply(http.StatusOK, map[string]any{"status": "unregistered successfully", "removed_instances": removed})
}

// reply answers a Mooncake client in the encoding that it used.
func (c *call) reply(status int, v map[string]any) error {
	if c.req != nil && c.req.msgpack {
		return c.msgpack(status, v)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return errors.Join(errors.New("encode answer"), err)
	}
	c.json(status, b)
	return nil
}
