package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
)

// traffic is what nodes sent to each other in the write phase.
type traffic struct{ frames, blocks, bytes, link float64 }

// trafficOf sums up what all nodes sent to others.
func trafficOf(ctx context.Context, nodes []*benchNode) (t traffic, err error) {
	for _, b := range nodes {
		err := b.metrics(ctx, func(name, labels string, v float64) {
			switch name {
			case "kvcluster_forwarded_frames_total":
				t.frames += v
			case "kvcluster_forwarded_blocks_total":
				t.blocks += v
			case "kvcluster_forwarded_bytes_total":
				t.bytes += v
			case "kvcluster_link_bytes_total":
				if strings.Contains(labels, `direction="out"`) {
					t.link += v
				}
			}
		})
		if err != nil {
			return t, err
		}
	}
	return t, nil
}

// metrics calls fn for every sample of the node's metrics.
func (b *benchNode) metrics(ctx context.Context, fn func(name, labels string, v float64)) error {
	var raw []byte
	if err := b.http.Get(ctx, "/metrics", nil, &raw); err != nil {
		return err
	}
	sc := bufio.NewScanner(bytes.NewReader(raw))
	for sc.Scan() {
		line := sc.Text()
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return fmt.Errorf("metrics of %s: %q: %w", b.Name, line, err)
		}
		name, labels, _ := strings.Cut(line[:at], "{")
		fn(name, labels, v)
	}
	return sc.Err()
}

// figures of the run by name.
func (r *clusterRun) figures() map[string]float64 {
	blocks := float64(r.stored + r.removed)
	perMillion := func(cpu float64) float64 { return cpu / blocks * 1e6 }
	over := func(a, b float64) float64 {
		if b == 0 {
			return 0
		}
		return a / b
	}
	idle := r.idle.Seconds() / idleLook.Seconds()
	cpu := make([]float64, len(r.each))
	for i := range r.each {
		cpu[i] = r.each[i].process.Seconds()
	}
	return map[string]float64{
		FigureTotal:     perMillion((r.write.process + r.query).Seconds()),
		FigureWrite:     perMillion(r.write.process.Seconds()),
		FigureWriteNet:  perMillion(max(0, r.write.process.Seconds()-idle*r.wall.Seconds())),
		FigureIO:        perMillion(r.write.io.Seconds()),
		FigureQuery:     over(r.query.Seconds()*1e6, float64(r.queries)),
		FigureIdle:      idle * 1e3,
		FigureFrame:     over(r.wire.bytes, r.wire.blocks),
		FigureLink:      over(r.wire.link, r.wire.blocks),
		FigureForwarded: over(r.wire.blocks, float64(r.stored)),
		FigureFrames:    r.wire.frames,
		FigureCPUMost:   mostOverMean(cpu),
		FigureHeldMost:  mostOverMean(r.heldBy),
		FigureSeconds:   r.wall.Seconds(),
		FigureAgain:     float64(r.again),
		FigureStale:     float64(r.stale),
		FigureGaps:      r.gaps,
	}
}

// mostOverMean is 1 when all values are equal.
func mostOverMean(v []float64) float64 {
	most, sum := 0.0, 0.0
	for _, x := range v {
		most = max(most, x)
		sum += x
	}
	if sum == 0 {
		return 0
	}
	return most * float64(len(v)) / sum
}
