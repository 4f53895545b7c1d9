#!/usr/bin/env bash
# Starts a node on a free loopback port and runs conformance.py against it with
# msgspec and pyzmq from PyPI, or with Debian's python3-zmq and python3-msgpack
# where pip cannot reach PyPI.
set -euo pipefail
bin=${1:?usage: run.sh path/to/kvcluster}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
node=
cleanup() {
	[ -n "$node" ] && kill "$node" 2>/dev/null && wait "$node" 2>/dev/null
	rm -rf "$work"
}
trap cleanup EXIT

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
python=$work/venv/bin/python
if ! { python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q --disable-pip-version-check msgspec pyzmq; } >"$work/pip.log" 2>&1; then
	echo "PyPI is not to be had here; using Debian's python3-zmq and python3-msgpack"
	"${as_root[@]}" apt-get install -y -qq python3-zmq python3-msgpack >"$work/apt.log" 2>&1 || { tail -n 5 "$work/pip.log" "$work/apt.log" >&2; exit 1; }
	python=/usr/bin/python3
fi

"$bin" serve --listen 127.0.0.1:0 --pprof '' --address-file "$work/address" >"$work/node.log" 2>&1 &
node=$!
for _ in $(seq 100); do
	[ -s "$work/address" ] && break
	kill -0 "$node" 2>/dev/null || { cat "$work/node.log" >&2; exit 1; }
	sleep 0.1
done
[ -s "$work/address" ] || { echo "the node did not start in 10 s" >&2; cat "$work/node.log" >&2; exit 1; }
cd "$here"
"$python" conformance.py "http://$(cat "$work/address")" ../../transport/engine/testdata/wire-vectors.json || { tail -n 20 "$work/node.log" >&2; exit 1; }
