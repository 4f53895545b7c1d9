package node

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/kvcluster/kvcluster/cluster/control"
	"github.com/kvcluster/kvcluster/cluster/state"
)

func TestQuorumLack(t *testing.T) {
	of := func(name string, role control.Role, standing control.Standing) control.MemberInfo {
		return control.MemberInfo{Member: state.Member{Name: name}, Role: role, Standing: standing}
	}
	a := of("a", control.RoleVoter, control.StandingAlive)
	for _, c := range []struct {
		members []control.MemberInfo
		want    string
	}{
		{[]control.MemberInfo{of("a", control.RoleLeader, control.StandingAlive), of("b", control.RoleVoter, control.StandingAlive)}, ""},
		{[]control.MemberInfo{a, of("b", control.RoleVoter, control.StandingLeaving), of("c", control.RoleVoter, control.StandingDead)}, "no leader"},
		{[]control.MemberInfo{a, of("b", control.RoleVoter, control.StandingDead), of("c", control.RoleVoter, control.StandingGone), of("d", control.RoleFollower, control.StandingAlive)},
			"1 of 3 voters are alive and 2 are needed: start b, c again"},
	} {
		if got := quorumLack(c.members); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestWarnOfFounding(t *testing.T) {
	v := &state.View{}
	v.Cluster.Partitions, v.Cluster.Replicas = 256, 2
	for _, c := range []struct {
		partitions uint32
		replicas   int
		want       []string
	}{
		{256, 2, nil},
		{64, 2, []string{"--partitions", "given=64", "cluster_has=256"}},
		{256, 3, []string{"--replicas", "given=3", "cluster_has=2"}},
	} {
		var log bytes.Buffer
		warnOfFounding(Config{Partitions: c.partitions, Cluster: &ClusterConfig{Replicas: c.replicas}}, v, slog.New(slog.NewTextHandler(&log, nil)))
		for _, want := range c.want {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%d, %d: %q does not say %q", c.partitions, c.replicas, &log, want)
			}
		}
		if len(c.want) == 0 && log.Len() > 0 {
			t.Errorf("a warning without reason: %s", &log)
		}
	}
}

func TestReachable(t *testing.T) {
	for _, c := range [][3]string{
		{"0.0.0.0:8090", "10.0.0.1:7946", "10.0.0.1:8090"},
		{"[::]:8090", "10.0.0.1:7946", "10.0.0.1:8090"},
		{"127.0.0.1:8090", "10.0.0.1:7946", "127.0.0.1:8090"},
		{"0.0.0.0:8090", "", "0.0.0.0:8090"},
	} {
		at, err := net.ResolveTCPAddr("tcp", c[0])
		if err != nil {
			t.Fatal(err)
		}
		if got := reachable(at, c[1]); got != c[2] {
			t.Errorf("%s with gossip at %s: %s, want %s", c[0], c[1], got, c[2])
		}
	}
}
