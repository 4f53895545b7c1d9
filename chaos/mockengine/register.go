package mockengine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// ErrRegister is wrapped when a node refuses a registration or cannot be reached.
var ErrRegister = errors.New("registration failed")

type registration struct {
	Instance     uint64 `json:"instance_id"`
	Endpoint     string `json:"endpoint"`
	Replay       string `json:"replay_endpoint,omitempty"`
	Model        string `json:"model_name"`
	RoutingGroup string `json:"routing_group"`
	BlockSize    int    `json:"block_size"`
	Rank         uint32 `json:"dp_rank"`
}

type unregistration struct {
	Instance     uint64 `json:"instance_id"`
	Model        string `json:"model_name"`
	RoutingGroup string `json:"routing_group"`
}

// register announces one publisher. It tries again while the node cannot be reached
// or is not ready; a refusal is final.
func (f *Fleet) register(ctx context.Context, p *publisher) error {
	body := registration{
		Instance: p.at.Instance, Endpoint: f.advertised(p.at.Publish), Replay: f.advertised(p.at.Replay),
		Model: f.cfg.Model, RoutingGroup: f.cfg.RoutingGroup, BlockSize: f.cfg.BlockSize, Rank: p.at.Rank,
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.RegisterTimeout)
	defer cancel()
	pause := 50 * time.Millisecond
	for {
		again, err := f.post(ctx, "/register", body)
		if err == nil {
			return nil
		}
		if !again {
			return fmt.Errorf("%w: instance %d rank %d: %w", ErrRegister, p.at.Instance, p.at.Rank, err)
		}
		f.cfg.Logger.Debug("registration: trying again", "instance", p.at.Instance, "rank", p.at.Rank, "error", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: instance %d rank %d: %w (last answer: %w)", ErrRegister, p.at.Instance, p.at.Rank, ctx.Err(), err)
		case <-time.After(pause):
			pause = min(2*pause, 2*time.Second)
		}
	}
}

func (f *Fleet) unregister(ctx context.Context, instance uint64) error {
	_, err := f.post(ctx, "/unregister", unregistration{Instance: instance, Model: f.cfg.Model, RoutingGroup: f.cfg.RoutingGroup})
	if err != nil {
		return fmt.Errorf("unregister instance %d: %w", instance, err)
	}
	return nil
}

// post sends JSON; again says that the same call may succeed later.
func (f *Fleet) post(ctx context.Context, path string, body any) (again bool, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return false, err
	}
	url := strings.TrimSuffix(f.cfg.Register, "/") + path
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := f.http.Do(req)
	if err != nil {
		return true, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 4096))
	if err != nil {
		return true, fmt.Errorf("POST %s: %w", url, err)
	}
	if res.StatusCode/100 == 2 {
		return false, nil
	}
	again = res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests
	return again, fmt.Errorf("POST %s: %s: %s", url, res.Status, bytes.TrimSpace(answer))
}

// advertised replaces the bound host in a TCP endpoint by the advertised one.
func (f *Fleet) advertised(endpoint string) string {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	i := strings.LastIndexByte(rest, ':')
	if !ok || i < 0 || f.cfg.Endpoint != "" || f.cfg.Advertise == f.cfg.Host {
		return endpoint
	}
	host := f.cfg.Advertise
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	return "tcp://" + host + rest[i:]
}
