#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time each. New inputs that
# fail are left in the package's testdata/fuzz by the go tool: commit them.
set -euo pipefail
fuzztime=${1:-10s}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
found=0
while IFS=: read -r file name; do
	found=1
	echo "fuzz $(dirname "$file") $name ($fuzztime)"
	if go test "./$(dirname "$file")" -run '^$' -fuzz "^$name\$" -fuzztime "$fuzztime" -fuzzminimizetime 1s >"$out" 2>&1; then
		continue
	fi
	# The go tool reports its own time limit as a failure when it strikes while workers
	# are being stopped; a real one names an input.
	if grep -q 'context deadline exceeded' "$out" && ! grep -qE 'Failing input|panic:|_test\.go:' "$out"; then
		echo "  ended by its time limit"
		continue
	fi
	cat "$out"
	exit 1
done < <(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed -E 's#^\./([^:]+):[0-9]+:func (Fuzz.*)#\1:\2#')
if [ "$found" = 0 ]; then
	echo "no fuzz target found" >&2
	exit 1
fi
