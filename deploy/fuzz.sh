#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time each. New inputs that
# fail are left in the package's testdata/fuzz by the go tool: commit them.
set -euo pipefail
fuzztime=${1:-10s}
found=0
while IFS=: read -r file name; do
	found=1
	echo "fuzz $(dirname "$file") $name ($fuzztime)"
	go test "./$(dirname "$file")" -run '^$' -fuzz "^$name\$" -fuzztime "$fuzztime" >/tmp/fuzz.$$ 2>&1 || { cat /tmp/fuzz.$$; rm -f /tmp/fuzz.$$; exit 1; }
	rm -f /tmp/fuzz.$$
done < <(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed -E 's#^\./([^:]+):[0-9]+:func (Fuzz.*)#\1:\2#')
if [ "$found" = 0 ]; then
	echo "no fuzz target found" >&2
	exit 1
fi
