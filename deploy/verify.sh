#!/usr/bin/env bash
# Checks that change nothing. Every failure says which command mends it.
set -uo pipefail
bad=0
unformatted=$(gofmt -l $(git ls-files '*.go'))
if [ -n "$unformatted" ]; then
	printf 'gofmt would change these (make fix):\n%s\n' "$unformatted" >&2
	bad=1
fi
go vet ./... || bad=1
go mod tidy -diff >/dev/null || { echo "go.mod is not tidy (go mod tidy)" >&2; bad=1; }
# The version is pinned; where the module proxy cannot be reached the check is
# left out and said.
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
if go build -o /dev/null honnef.co/go/tools/cmd/staticcheck 2>/dev/null || go install "$staticcheck" 2>/dev/null; then
	"$(go env GOPATH)/bin/staticcheck" ./... || bad=1
else
	echo "staticcheck could not be installed here; left out" >&2
fi
# Images, units, settings and alert rules against the binary.
go test ./deploy || bad=1
for script in deploy/*.sh .ci/run; do
	bash -n "$script" || bad=1
done
exit $bad
