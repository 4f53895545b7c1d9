package sim

import (
	"flag"
	"testing"
	"testing/synctest"
)

var verbose = flag.Bool("sim.log", false, "print what the nodes say")

// A cluster in which nothing goes wrong.
func TestCalm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Seed: 1, Nodes: 3, Engines: 1, Partitions: 4, Replicas: 2}
		if *verbose {
			cfg.Log = func(line string) { t.Log(line) }
		}
		r := Run(cfg, []Step{{Kind: "nothing", For: 3e9, Seed: 1}})
		for _, f := range r.Failures {
			t.Error(f)
		}
		t.Logf("%+v", r.Counts)
	})
}
