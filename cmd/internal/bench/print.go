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

// Print writes all rows as one table: target, aim, median, lowest and highest run,
// verdict.
func (r *Report) Print(w io.Writer) error {
	source := r.Trace
	if r.Generated {
		source = "generated"
	}
	fmt.Fprintf(w, "%s, %d cores, %.0f GiB, Linux %s, %s, load %.1f\n", r.Host.CPU, r.Host.Cores, float64(r.Host.Memory)/(1<<30), r.Host.Kernel, r.Host.Go, r.Host.Load)
	fmt.Fprintf(w, "trace %s; op list %s, checksum %#016x\n", source, r.List, uint64(r.Checksum))
	if r.Quick {
		fmt.Fprintln(w, "short form: small inputs, no figures to quote")
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		fmt.Fprintf(w, "\n%s: %s\n  %s; %d runs\n", row.Name, row.Title, row.Inputs, row.Repeat)
		for _, s := range row.Invalid {
			fmt.Fprintf(w, "  does not count: %s\n", s)
		}
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "  \tmedian\tlow..high\tunit\ttarget\taim\tprototype\tverdict")
		for j := range row.Measures {
			m := &row.Measures[j]
			fmt.Fprintf(t, "  %s\t%s\t%s..%s\t%s\t%s\t%s\t%s\t%s\n", m.Title, m.show(m.Median), m.show(m.Min), m.show(m.Max), m.Unit,
				m.limit(m.AtLeast), m.limit(m.Aim), m.Prototype, m.Verdict)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\n%d of the targets missed\n", r.Missed())
	return err
}

// show writes a value in the unit of the measure.
func (m *Measure) show(v float64) string {
	if m.Scale != 0 {
		v /= m.Scale
	}
	return fmt.Sprintf("%.3g", v)
}

func (m *Measure) limit(v float64) string {
	if v == 0 {
		return "-"
	}
	sign := "<="
	if m.HigherIsBetter {
		sign = ">="
	}
	return sign + m.show(v)
}
