package oplist

import (
	"errors"
	"io/fs"

	"github.com/kvcluster/kvcluster/chaos/trace"
)

// Load builds a list from the trace at path. When no file is there it generates a
// trace of the same size and shape, and says so: published answers then do not
// apply, those of Expected do.
func Load(path string, cfg Config) (l *List, generated bool, err error) {
	t, err := trace.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		generated = true
		t, err = trace.Generate(trace.DefaultGenerate(12031))
	}
	if err != nil {
		return nil, generated, err
	}
	l, err = Build(t, cfg)
	return l, generated, err
}
