package live

import (
	"strings"
	"testing"
	"time"
)

func snapshots() (prev, now *Snapshot) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	prev = &Snapshot{At: at, Ready: true, Events: 1000, Workers: []Worker{{Instance: "7", Rank: "0", Events: 1000}}}
	now = &Snapshot{
		At: at.Add(2 * time.Second), Ready: true, Cluster: &Cluster{Leader: "n1", MapIndex: 9, LeaseHeld: true, Balance: 1.25, Unready: 3}, Nodes: []Node{{Name: "n1", Role: "leader", Alive: true, Phase: "active", Partitions: 7, Ready: 6}, {Name: "n2", Role: "voter"}}, Events: 5000, Streams: map[string]int{"active": 1}, Held: [4]uint64{1_500_000, 20, 0, 0},
		Distinct: 900_000, Reserved: 64 << 20, Lanes: []Lane{{Queued: 3, Percent: 50}}, Lag: 1500 * time.Microsecond,
		Workers: []Worker{{Instance: "7", Rank: "0", State: "active", Held: 1_500_020, Events: 5000, Lag: 1500 * time.Microsecond, Remark: "look at me"}},
	}
	return prev, now
}

func TestLine(t *testing.T) {
	var b strings.Builder
	prev, now := snapshots()
	if err := Line(&b, prev, now); err != nil {
		t.Fatal(err)
	}
	want := "03:04:07 nodes=1/2 streams=1/1 events/s=2k held=1.5M distinct=900k lag=1.5ms gaps=0 orphans=0 degraded=0 memory=64.0 MiB\n"
	if b.String() != want {
		t.Errorf("got  %swant %s", b.String(), want)
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	prev, now := snapshots()
	if err := Table(&b, "http://node", prev, now, 10); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"http://node", "2k/s", "1.5M blocks", "host 20", "active 1", "look at me", "50 %   queued 3", "6 of 7 partitions ready", "leader n1   map index 9   balance 1.25", "3 partitions without all owners", "DEAD", strings.Repeat("█", 16)} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	now.Workers = append(now.Workers, Worker{Instance: "8", Rank: "0"}, Worker{Instance: "9", Rank: "0"})
	b.Reset()
	if err := Table(&b, "x", nil, now, 1); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "and 2 more") {
		t.Errorf("workers are not limited:\n%s", b.String())
	}
}

// A counter that fell (the node restarted) is no negative rate.
func TestRateAfterRestart(t *testing.T) {
	prev, now := snapshots()
	if r := rate(now, &Snapshot{At: now.At.Add(time.Second), Events: prev.Events}, (*Snapshot).events); r != 0 {
		t.Errorf("rate %v", r)
	}
}

func TestLag(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                                "-",
		1234567 * time.Nanosecond:        "1.23ms",
		21999450 * time.Microsecond:      "22s",
		44101583 * time.Microsecond:      "44.1s",
		1500 * time.Millisecond:          "1.5s",
		999999999 * time.Nanosecond:      "1s",
		83*time.Second + time.Nanosecond: "1m23s",
	} {
		if got := lag(d); got != want {
			t.Errorf("lag of %d ns: %q, want %q", d, got, want)
		}
	}
}
