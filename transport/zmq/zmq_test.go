package zmq_test

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/transporttest"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(fleetEnv); spec != "" {
		if err := runFleet(spec); err != nil {
			fmt.Fprintln(os.Stderr, "fleet:", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func newNetwork(t testing.TB, cfg zmq.Config) *zmq.Network {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	n, err := zmq.New(cfg)
	if err != nil {
		t.Fatalf("new network: %v", err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close network: %v", err)
		}
	})
	return n
}

// freePort returns a port of the loopback that was free a moment ago.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	defer l.Close()
	return "tcp://" + l.Addr().String()
}

func newNetworkInterface(t testing.TB) transport.Network { return newNetwork(t, zmq.Config{}) }

func subtest(t *testing.T, name string, f func(t *testing.T)) { t.Run(name, f) }

func TestContractTCP(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{
		New:   newNetworkInterface,
		Bind:  func(testing.TB) string { return "tcp://127.0.0.1:*" },
		Fixed: freePort,
		Run:   subtest,
		BadEndpoints: []string{
			"", "tcp://", "127.0.0.1:5557", "tcp://127.0.0.1", "tcp://:5557", "tcp://127.0.0.1:65536", "tcp://127.0.0.1:-1",
			"tcp://127.0.0.1:http", "tcp://127.0.0.256:5557", "tcp://1.2.3:5557", "tcp://::1:5557", "tcp://[::1:5557",
			"tcp://[::zz]:5557", "tcp://[127.0.0.1]:5557", "tcp://127.0.0.1:55 57", "udp://127.0.0.1:5557", "inproc://x",
			"http://127.0.0.1:5557", "tcp:/127.0.0.1:5557", "tcp://a/b:5557",
		},
	})
}

func TestContractIPC(t *testing.T) {
	next := 0
	address := func(t testing.TB) string {
		next++
		return "ipc://" + filepath.Join(t.TempDir(), fmt.Sprint(next))
	}
	transporttest.Run(t, transporttest.Harness{
		New:          newNetworkInterface,
		Bind:         address,
		Fixed:        address,
		Run:          subtest,
		BadEndpoints: []string{"", "ipc://", "ipc://" + strings.Repeat("x", 108), "ipc:///no/such/directory/socket\x00"},
	})
}
