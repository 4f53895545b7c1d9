package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// figureRows are the lines of the table.
var figureRows = []struct{ key, title, unit, format string }{
	{FigureTotal, "CPU for a million blocks, queries included", "s", "%.3f"},
	{FigureWrite, "  written and applied everywhere", "s", "%.3f"},
	{FigureWriteNet, "  the same without what an idle cluster uses", "s", "%.3f"},
	{FigureQuery, "CPU of a query", "us", "%.0f"},
	{FigureIdle, "idle: CPU a second, all nodes", "ms", "%.1f"},
	{FigureForwarded, "stored blocks that go to another node", "of 1", "%.2f"},
	{FigureFrame, "bytes of frames for each of them", "B", "%.1f"},
	{FigureLink, "payload bytes of links, fills and control included", "B", "%.1f"},
	{FigureCPUMost, "balance: CPU, largest over mean", "", "%.2f"},
	{FigureHeldMost, "balance: held blocks, largest over mean", "", "%.2f"},
	{FigureSeconds, "write phase, wall time", "s", "%.1f"},
	{FigureGaps, "gaps closed by replay", "", "%.0f"},
	{FigureAgain, "queries asked again (partial answers)", "", "%.0f"},
	{FigureStale, "answers marked as perhaps stale", "", "%.0f"},
}

// Print writes the report for people.
func (r *ClusterReport) Print(w io.Writer) error {
	source := r.Trace
	if r.Generated {
		source = "generated, many system prompts"
	}
	fmt.Fprintf(w, "%s, %d cores, Linux %s, %s, load %.1f\n", r.Host.CPU, r.Host.Cores, r.Host.Kernel, r.Host.Go, r.Host.Load)
	fmt.Fprintf(w, "trace %s: %d requests, %d first ids, the most frequent with %d requests\n", source, r.Requests, r.FirstIDs, r.LargestIDs)
	fmt.Fprintf(w, "  requests with one first block lie in one partition: a trace with few of them cannot be spread evenly\n")
	fmt.Fprintf(w, "%d mock engines, %d tokens a block, at most %.0f blocks a second; %d batches, %d blocks stored, %d removed, %d held; %d queries\n",
		r.Workers, r.BlockSize, r.Rate, r.Batches, r.Stored, r.Removed, r.Held, r.Queries)
	fmt.Fprintf(w, "%d owners of a partition (fewer with fewer nodes); %d repetitions of each size: median, lowest..highest, ratio to %d node(s)\n", r.Replicas, r.Repeat, r.Sizes[0].Nodes)
	fmt.Fprintf(w, "every batch was read and every block applied; the answers (%#016x) are the same at every size\n\n", uint64(r.Answers))

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "nodes\tunit")
	for i := range r.Sizes {
		fmt.Fprintf(t, "\t%d", r.Sizes[i].Nodes)
	}
	fmt.Fprintln(t, "\t")
	for _, row := range figureRows {
		fmt.Fprintf(t, "%s\t%s", row.title, row.unit)
		for i := range r.Sizes {
			s := r.Sizes[i].Figures[row.key]
			fmt.Fprintf(t, "\t"+row.format, s.Median)
			if s.Min != s.Max {
				fmt.Fprintf(t, " ("+row.format+".."+row.format+")", s.Min, s.Max)
			}
			if ratio := r.Sizes[i].Ratios[row.key]; i > 0 && ratio > 0 && isCPU(row.key) {
				fmt.Fprintf(t, " x%.2f", ratio)
			}
		}
		fmt.Fprintln(t, "\t")
	}
	if len(r.Sizes[0].Parts) > 0 {
		fmt.Fprintln(t, "\t\t\nCPU by part, for a million blocks\ts")
		for _, part := range clusterParts {
			fmt.Fprintf(t, "  %s\t", part)
			for i := range r.Sizes {
				fmt.Fprintf(t, "\t%.3f", r.Sizes[i].Parts[part])
				if first := r.Sizes[0].Parts[part]; i > 0 && first > 0 {
					fmt.Fprintf(t, " x%.2f", r.Sizes[i].Parts[part]/first)
				}
			}
			fmt.Fprintln(t, "\t")
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range r.Sizes {
		for _, note := range r.Sizes[i].Notes {
			fmt.Fprintf(w, "%d nodes: %s\n", r.Sizes[i].Nodes, note)
		}
	}
	return nil
}

// isCPU says for which figures a ratio to one node is shown.
func isCPU(key string) bool {
	switch key {
	case FigureTotal, FigureWrite, FigureWriteNet, FigureQuery, FigureIdle:
		return true
	}
	return false
}
