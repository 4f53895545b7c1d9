package bench

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// Geometry of the chart, in pixels.
const (
	chartWidth  = 980
	chartLabel  = 430
	chartPlot   = 380
	chartLine   = 22
	chartMargin = 16
)

// WriteSVG draws every figure that has a target: where the runs lie in relation to the
// target (the line in the middle), each run a dot, the median a bar, the aim a dashed
// mark. To the right is better, on a logarithmic scale from an eighth of the target to
// eight times it. The file needs nothing else.
func (r *Report) WriteSVG(w io.Writer) error {
	var body strings.Builder
	y := chartMargin + 52
	text := func(x, y int, class, s string) {
		fmt.Fprintf(&body, `<text x="%d" y="%d" class="%s">%s</text>`+"\n", x, y, class, html.EscapeString(s))
	}
	text(chartMargin, chartMargin+8, "head", "kvcluster bench index")
	note := fmt.Sprintf("%s, %d cores, load %.1f, %s; %s", r.Host.CPU, r.Host.Cores, r.Host.Load, r.Host.Go, r.Time.Format("2006-01-02 15:04 MST"))
	if r.Quick {
		note += "; short form, no figures to quote"
	}
	text(chartMargin, chartMargin+26, "small", note)
	text(chartLabel+chartPlot/2-20, chartMargin+44, "small", "target")
	text(chartLabel, chartMargin+44, "small", "worse")
	text(chartLabel+chartPlot-32, chartMargin+44, "small", "better")
	top := y - 4
	for i := range r.Rows {
		for j := range r.Rows[i].Measures {
			m := &r.Rows[i].Measures[j]
			if m.AtLeast == 0 || len(m.Runs) == 0 {
				continue
			}
			m.draw(&body, r.Rows[i].Name, y)
			y += chartLine
		}
	}
	middle := chartLabel + chartPlot/2
	fmt.Fprintf(&body, `<line x1="%d" y1="%d" x2="%d" y2="%d" class="target"/>`+"\n", middle, top, middle, y)
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="kvcluster benchmark">
<style>
svg{background:#fff} text{font:13px sans-serif;fill:#1b1f24} .head{font-size:16px;font-weight:600} .small{font-size:11px;fill:#57606a}
.band{fill:#f3f5f7} .good{fill:#2da44e} .ok{fill:#bf8700} .bad{fill:#cf222e} .dot{fill-opacity:.45}
.target{stroke:#57606a;stroke-width:1} .aim{stroke:#57606a;stroke-width:1;stroke-dasharray:3 2}
</style>
%s</svg>
`, chartWidth, y+chartMargin, chartWidth, y+chartMargin, body.String())
	return err
}

// draw puts one measure on the line at y.
func (m *MeasureReport) draw(w *strings.Builder, row string, y int) {
	fmt.Fprintf(w, `<rect x="%d" y="%d" width="%d" height="%d" class="band"/>`+"\n", chartLabel, y, chartPlot, chartLine-4)
	fmt.Fprintf(w, `<text x="%d" y="%d">%s</text>`+"\n", chartMargin, y+13, html.EscapeString(row+": "+m.Title))
	class := map[string]string{VerdictAim: "good", VerdictMet: "ok"}[m.Verdict]
	if class == "" {
		class = "bad"
	}
	for _, v := range m.Runs {
		fmt.Fprintf(w, `<circle cx="%.1f" cy="%d" r="3.5" class="dot %s"/>`+"\n", m.place(v), y+9, class)
	}
	fmt.Fprintf(w, `<rect x="%.1f" y="%d" width="3" height="%d" class="%s"/>`+"\n", m.place(m.Median)-1.5, y+1, chartLine-6, class)
	if m.Aim != 0 {
		x := m.place(m.Aim)
		fmt.Fprintf(w, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" class="aim"/>`+"\n", x, y, x, y+chartLine-4)
	}
	label := fmt.Sprintf("%s %s (%s to %s)", m.show(m.Median), m.Unit, m.show(m.Min), m.show(m.Max))
	fmt.Fprintf(w, `<text x="%d" y="%d" class="small">%s</text>`+"\n", chartLabel+chartPlot+8, y+13, html.EscapeString(label))
}

// place is the position of a value: the target in the middle, a factor of eight to
// both ends, the better side on the right.
func (m *MeasureReport) place(v float64) float64 {
	ratio := v / m.AtLeast
	if !m.HigherIsBetter {
		ratio = 1 / ratio
	}
	at := 0.5 + math.Log(max(ratio, 1e-9))/math.Log(64)
	return chartLabel + chartPlot*min(max(at, 0), 1)
}
