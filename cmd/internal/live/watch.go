package live

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/kvcluster/kvcluster/cmd/internal/client"
)

// patience is how long a cluster may go without an answer while it is watched.
const patience = 15 * time.Second

// Watch draws every period until ctx is done or count snapshots have been drawn (0 =
// no limit). On a terminal it redraws a table in place, elsewhere it writes a line.
// footer, if not nil, is called for lines to draw below the table.
func Watch(ctx context.Context, out io.Writer, c *client.Client, period time.Duration, count int, footer func() string) error {
	screen, rows := terminal(out)
	var prev *Snapshot
	for n := 0; ; n++ {
		now, err := Take(ctx, c)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && prev != nil && time.Since(prev.At) < patience {
			select { // a node that ends is replaced by another
			case <-ctx.Done():
				return nil
			case <-time.After(min(period, time.Second)):
			}
			continue
		}
		if err != nil {
			return err
		}
		if screen {
			err = redraw(out, c.Base(), prev, now, rows, footer)
		} else {
			err = Line(out, prev, now)
		}
		if err != nil {
			return err
		}
		if prev = now; n+1 == count {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(period):
		}
	}
}

// redraw writes a whole screen at once: home, every line cleared to its end, the rest
// cleared. So nothing flickers.
func redraw(out io.Writer, title string, prev, now *Snapshot, rows int, footer func() string) error {
	var b strings.Builder
	if err := Table(&b, title, prev, now, max(3, rows-18)); err != nil {
		return err
	}
	if footer != nil {
		b.WriteString("\n" + footer())
	}
	text := strings.ReplaceAll(b.String(), "\n", "\x1b[K\n")
	_, err := io.WriteString(out, "\x1b[H"+text+"\x1b[J")
	return err
}

// terminal reports whether out is a terminal that can be redrawn, and its rows.
func terminal(out io.Writer) (bool, int) {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return false, 0
	}
	_, rows, err := term.GetSize(int(f.Fd()))
	if err != nil || rows <= 0 {
		rows = 40
	}
	return true, rows
}
