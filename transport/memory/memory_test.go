package memory_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/memory"
	"github.com/kvcluster/kvcluster/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func harness(run func(t *testing.T, name string, f func(t *testing.T))) transporttest.Harness {
	var next atomic.Int64
	return transporttest.Harness{
		New:          func(testing.TB) transport.Network { return memory.New(memory.Config{}) },
		Bind:         func(testing.TB) string { return "mem://*" },
		Fixed:        func(testing.TB) string { return fmt.Sprint("mem://fixed-", next.Add(1)) },
		Run:          run,
		BadEndpoints: []string{"", "mem://", "mem://with blank", "mem://line\n", "tcp://"},
	}
}

func TestContractInBubble(t *testing.T) {
	transporttest.Run(t, harness(func(t *testing.T, name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
	}))
}

func TestContractInRealTime(t *testing.T) {
	transporttest.Run(t, harness(func(t *testing.T, name string, f func(t *testing.T)) { t.Run(name, f) }))
}
