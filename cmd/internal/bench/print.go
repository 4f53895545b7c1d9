package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes the report as a table: medians, lowest and highest run.
func (r *OplistReport) Print(w io.Writer) error {
	source := r.Trace
	if r.Generated {
		source = "generated trace"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "op list\t%s  D=%d W=%d CAP=%d  checksum %#016x  %d block ops, %d held, %d distinct\n", source, r.D, r.W, r.Cap, uint64(r.Checksum), r.BlockOps, r.Held, r.Distinct)
	fmt.Fprintf(t, "answers\t%d rows, depth sum %d, row hash %#016x: all as expected\n", r.Rows, r.DepthSum, uint64(r.RowHash))
	fmt.Fprintf(t, "runs\t%d processes for each arm\n\n", r.Repeat)
	fmt.Fprintf(t, "\tM block ops/CPU-s\tlow..high\tquery p50\tp99\tbytes/held live\tRSS\t\n")
	row := func(name string, a *OplistArm) {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f..%.1f\t%.0f ns\t%.0f ns\t%.1f\t%.1f\t\n", name, a.PerCPU.Median/1e6, a.PerCPU.Min/1e6, a.PerCPU.Max/1e6,
			a.QueryNs.P50, a.QueryNs.P99, a.BytesHeld.Live, a.BytesHeld.RSS)
	}
	row(ArmKVCluster, &r.OplistArm)
	if r.Baseline != nil {
		row(ArmBaseline, r.Baseline)
		fmt.Fprintf(t, "ratio\t%.1f\t\t\t\t\t\t\n", r.Ratio)
	}
	return t.Flush()
}
