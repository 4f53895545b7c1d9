package mockengine

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/kvcluster/kvcluster/chaos/driver"
	"github.com/kvcluster/kvcluster/chaos/trace"
)

func TestValidateNamesTheValue(t *testing.T) {
	tr := traffic(t, 3)
	for part, set := range map[string]func(*Config){
		"number of workers is -1":        func(c *Config) { c.Workers = -1 },
		"number of ranks is 2000":        func(c *Config) { c.Ranks = 2000 },
		"repeat is -2":                   func(c *Config) { c.Repeat = -2 },
		"block size is -1":               func(c *Config) { c.BlockSize = -1 },
		"capacity is -5":                 func(c *Config) { c.Capacity = -5 },
		"host capacity is -5":            func(c *Config) { c.HostCapacity = -5 },
		"hash mode is md5":               func(c *Config) { c.Hash = "md5" },
		"speed-up is NaN":                func(c *Config) { c.Speedup = math.NaN() },
		"batch rate is -1":               func(c *Config) { c.MaxBatchRate = -1 },
		"block rate is NaN":              func(c *Config) { c.MaxBlockRate = math.NaN() },
		"prefill rate is -1":             func(c *Config) { c.PrefillRate = -1 },
		"decode rate is -1":              func(c *Config) { c.DecodeRate = -1 },
		"prefill chunk is -1":            func(c *Config) { c.PrefillChunk = -1 },
		"step is -1ns":                   func(c *Config) { c.Step = -1 },
		"base port is 70000":             func(c *Config) { c.BasePort = 70000 },
		"room for 20 ports below 65536":  func(c *Config) { c.BasePort, c.Workers = 65530, 10 },
		"endpoint is tcp://x:1":          func(c *Config) { c.Endpoint, c.Workers = "tcp://x:1", 2 },
		"replay endpoint is tcp://x:2":   func(c *Config) { c.ReplayEndpoint, c.Workers = "tcp://x:2", 2 },
		"the address to connect to":      func(c *Config) { c.Connect = true },
		"replay buffer is -1":            func(c *Config) { c.Buffer = -1 },
		"high-water mark is -1":          func(c *Config) { c.HighWater = -1 },
		"advertised host is 0.0.0.0":     func(c *Config) { c.Host, c.Register = "0.0.0.0", "http://x:1" },
		"empty when the publishers conn": func(c *Config) { c.Connect, c.Endpoint, c.Register = true, "tcp://x:1", "http://x:1" },
		"register URL is x:8090":         func(c *Config) { c.Register = "x:8090" },
		`format "vllm", want one of`:     func(c *Config) { c.Formats = []Format{"vllm"} },
		"trace is empty":                 func(c *Config) { c.Trace = &trace.Trace{} },
		"fault lose: publisher 1":        func(c *Config) { c.Faults = []Fault{{Kind: Lose, Worker: 1}} },
		`fault kind "melt"`:              func(c *Config) { c.Faults = []Fault{{Kind: "melt"}} },
	} {
		c := Config{Trace: tr}
		set(&c)
		if _, err := New(c); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), part) {
			t.Errorf("want %q, got %v", part, err)
		}
	}
	if _, err := New(Config{Generate: trace.GenerateConfig{Requests: -1}}); !errors.Is(err, trace.ErrRange) {
		t.Errorf("generate: %v", err)
	}
	if _, err := New(Config{Trace: tr, Driver: driver.Config{Policy: "near"}}); !errors.Is(err, driver.ErrConfig) {
		t.Errorf("driver: %v", err)
	}
	if _, err := New(Config{}); err != nil {
		t.Errorf("the zero configuration: %v", err)
	}
}

func TestParseFormats(t *testing.T) {
	got, err := ParseFormats("vllm-map, trtllm")
	if err != nil || len(got) != 2 || got[1] != TRTLLM {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ParseFormats("vllm-map,"); !errors.Is(err, ErrConfig) {
		t.Errorf("an empty format: %v", err)
	}
}
