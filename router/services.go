package router

import (
	"encoding/json"
	"net/http"
	"strings"
)

// services serves GET /services: Mooncake's list of accepted subscriptions.
func (c *call) services() error {
	list := []any{}
	for _, w := range c.router.cluster.View().Workers() {
		for _, r := range w.Ranks {
			one := map[string]any{
				"InstanceID": w.Instance, "DPRank": r.Rank, "TenantID": r.Group.RoutingGroup, "ModelName": r.Group.Model,
				"LoraName": r.Lora, "BlockSize": r.BlockSize, "Endpoint": r.Endpoint, "ReplayEndpoint": r.ReplayEndpoint,
				"Type": r.EngineType,
			}
			if h := profileOf(r.Registration); h != nil {
				one["HashProfile"] = h.fields()
			}
			list = append(list, one)
		}
	}
	return c.mooncakeView(map[string]any{"count": len(list), "services": list})
}

// globalView serves GET /global_view: Mooncake's list of contexts. A context of its is
// one index group here; prefix_count is the number of blocks that its ranks hold.
func (c *call) globalView() error {
	held := map[uint32]uint64{}
	for _, s := range c.router.cluster.Streams() {
		for _, n := range s.Held {
			held[s.Group] += n
		}
	}
	view := c.router.cluster.View()
	contexts := []any{}
	for _, g := range view.Groups() {
		instances := map[string]any{}
		one := map[string]any{
			"tenant_id": g.Key.RoutingGroup, "model_name": g.Key.Model, "lora_name": "", "block_size": g.BlockSize,
			"instances": instances, "prefix_count": held[g.ID],
		}
		for _, w := range view.Workers() {
			if w.Group.ID != g.ID {
				continue
			}
			ranks := []any{}
			for _, r := range w.Ranks {
				ranks = append(ranks, r.Rank)
				if h := profileOf(r.Registration); h != nil {
					one["python_hash_seed"], one["root_digest"] = h.seed, h.rootDigest()
				}
			}
			instances[w.Instance] = ranks
		}
		contexts = append(contexts, one)
	}
	return c.mooncakeView(map[string]any{"context_count": len(contexts), "contexts": contexts})
}

// mooncakeView answers in msgpack, or in JSON for a client that asks for it.
func (c *call) mooncakeView(v map[string]any) error {
	if !strings.Contains(c.r.Header.Get("Accept"), "json") && c.r.URL.Query().Get("format") != "json" {
		return c.msgpack(http.StatusOK, v)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.json(http.StatusOK, b)
	return nil
}
