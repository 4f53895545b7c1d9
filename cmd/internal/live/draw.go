package live

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// text says what a node is and has.
func (n Node) text() string {
	state := n.Role
	switch {
	case !n.Alive:
		state = "DEAD"
	case n.Phase != "active":
		state = n.Phase
	}
	return fmt.Sprintf("%-9s %d of %d partitions ready   %d sources", state, n.Ready, n.Partitions, n.Sources)
}

// text is the cluster in one line, what is wrong with it last.
func (c *Cluster) text() string {
	out := "no leader"
	if c.Leader != "" {
		out = "leader " + c.Leader
	}
	out += fmt.Sprintf("   map index %d   balance %.2f   log lag %d", c.MapIndex, c.Balance, c.LogLag)
	if !c.LeaseHeld {
		out += "   MAP MAY BE STALE"
	}
	if c.Disk.Low {
		out += fmt.Sprintf("   DISK NEARLY FULL (%d MiB free)", c.Disk.Free>>20)
	}
	for _, x := range []struct {
		n    int
		what string
	}{
		{c.Unowned, "partitions UNREADABLE"}, {c.Unready, "partitions without all owners"}, {c.Degraded, "degraded slots"},
		{c.Unreadable, "unreadable slots here"}, {c.Changes, "changes under way"},
	} {
		if x.n > 0 {
			out += fmt.Sprintf("   %d %s", x.n, x.what)
		}
	}
	return out
}

// rate returns the growth a second between two snapshots.
func rate(prev, now *Snapshot, get func(*Snapshot) uint64) float64 {
	if prev == nil || get(now) < get(prev) {
		return 0
	}
	return float64(get(now)-get(prev)) / now.At.Sub(prev.At).Seconds()
}

// Line writes one plain line, for logs and pipes.
func Line(w io.Writer, prev, now *Snapshot) error {
	alive := 0
	for _, n := range now.Nodes {
		if n.Alive {
			alive++
		}
	}
	_, err := fmt.Fprintf(w, "%s nodes=%d/%d streams=%d/%d events/s=%s held=%s distinct=%s lag=%s gaps=%d orphans=%d degraded=%d memory=%s\n",
		now.At.Format(time.TimeOnly), alive, len(now.Nodes), now.Streams["active"], len(now.Workers), Count(rate(prev, now, (*Snapshot).events)),
		Count(float64(now.held())), Count(float64(now.Distinct)), lag(now.Lag), now.Gaps, now.Orphans, now.Degraded, size(now.Reserved))
	return err
}

func (s *Snapshot) events() uint64 { return s.Events }

func (s *Snapshot) held() (n uint64) {
	for _, h := range s.Held {
		n += h
	}
	return n
}

// Table writes a full screen; top limits the workers shown.
func Table(w io.Writer, title string, prev, now *Snapshot, top int) error {
	ready := "ready"
	if !now.Ready {
		ready = "NOT READY"
	}
	fmt.Fprintf(w, "kvcluster  %s  %s  %s\n\n", title, ready, now.At.Format(time.TimeOnly))
	fmt.Fprintf(w, "  events    %s/s   batches %s/s   lag %s   gaps %d\n", Count(rate(prev, now, (*Snapshot).events)),
		Count(rate(prev, now, func(s *Snapshot) uint64 { return s.Batches })), lag(now.Lag), now.Gaps)
	fmt.Fprintf(w, "  held      %s blocks   device %s  host %s  disk %s  external %s\n", Count(float64(now.held())),
		Count(float64(now.Held[0])), Count(float64(now.Held[1])), Count(float64(now.Held[2])), Count(float64(now.Held[3])))
	where := "" // of a cluster only the node that was asked knows what it has
	if now.Cluster != nil {
		where = " here"
	}
	fmt.Fprintf(w, "  distinct  %s blocks%s   orphans %d   memory %s\n", Count(float64(now.Distinct)), where, now.Orphans, size(now.Reserved))
	fmt.Fprintf(w, "  streams   %s\n", states(now.Streams))
	if c := now.Cluster; c != nil {
		fmt.Fprintf(w, "  cluster   %s\n", c.text())
	}
	for _, n := range now.Nodes {
		fmt.Fprintf(w, "  node %-4s %s\n", n.Name, n.text())
	}
	for i, l := range now.Lanes {
		fmt.Fprintf(w, "  lane %-4d %s %3d %%   queued %d\n", i, bar(float64(l.Percent)/100, 20), l.Percent, l.Queued)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  WORKER\tRANK\tSTREAM\tHELD\t\tEVENTS/S\tLAG\t")
	most := uint64(1)
	if len(now.Workers) > 0 {
		most = max(1, now.Workers[0].Held)
	}
	before := map[string]Worker{}
	if prev != nil {
		for _, o := range prev.Workers {
			before[o.Instance+"/"+o.Rank] = o
		}
	}
	for i, o := range now.Workers {
		if i == top {
			fmt.Fprintf(t, "  and %d more\t\t\t\t\t\t\t\n", len(now.Workers)-top)
			break
		}
		perSecond := 0.0
		if b, ok := before[o.Instance+"/"+o.Rank]; ok && o.Events >= b.Events {
			perSecond = float64(o.Events-b.Events) / now.At.Sub(prev.At).Seconds()
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", o.Instance, o.Rank, o.State, Count(float64(o.Held)), bar(float64(o.Held)/float64(most), 16), Count(perSecond), lag(o.Lag), o.Remark)
	}
	return t.Flush()
}

func states(m map[string]int) string {
	var parts []string
	for _, s := range []string{"active", "pending", "buffering", "catching_up", "paused", "failed"} {
		if m[s] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", s, m[s]))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, "   ")
}

func bar(share float64, width int) string {
	full := min(width, max(0, int(share*float64(width)+0.5)))
	return strings.Repeat("█", full) + strings.Repeat("·", width-full)
}

// Count shortens a number: 1234567 becomes 1.23M.
func Count(v float64) string {
	for _, u := range []struct {
		at   float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= u.at {
			return fmt.Sprintf("%.3g%s", v/u.at, u.name)
		}
	}
	return fmt.Sprintf("%.0f", v)
}

func size(b uint64) string {
	switch {
	case b >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(b)/(1<<30))
	case b >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(b)/(1<<20))
	}
	return fmt.Sprintf("%d KiB", b>>10)
}

func lag(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	if d >= time.Second {
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
