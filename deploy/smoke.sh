#!/usr/bin/env bash
# The built binary as a user starts it, on free ports, in about half a minute: the demo
# survives a killed node, ends cleanly when interrupted and leaves nothing behind; a node, mock workers and
# every command that asks work together. Needs nothing but bash and coreutils.
#
# usage: deploy/smoke.sh path/to/kvcluster
set -euo pipefail
bin=$(realpath "${1:?usage: smoke.sh path/to/kvcluster}")
work=$(mktemp -d)
started=()
step=start

say() { step=$1; echo "smoke: $1"; }
fail() {
	echo "smoke: FAILED: $step: $*" >&2
	for f in "$work"/*.log "$work"/*.out; do
		[ -s "$f" ] && { echo "--- ${f##*/}"; tail -n 15 "$f"; } >&2
	done
	exit 1
}
cleanup() {
	for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
	for pid in "${started[@]}"; do wait "$pid" 2>/dev/null || true; done
	rm -rf "$work"
}
trap cleanup EXIT

# run COMMAND...: its output goes to $work/out.log; it must succeed in time.
run() {
	timeout 20 "$bin" "$@" >"$work/out.log" 2>&1 || fail "kvcluster $* ended with $?"
}
# until SECONDS TEST...: waits for a test to come true.
until_true() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.1
	done
}
# ended PID: it is gone, or has been and only waits to be asked for.
ended() { [ ! -e "/proc/$1" ] || grep -q '^State:.*Z' "/proc/$1/status" 2>/dev/null; }
# children PID: processes started by it that are there.
children() { cat /proc/"$1"/task/*/children 2>/dev/null || true; }
# http_get ADDRESS PATH ACCEPT: the body of an answer.
http_get() {
	exec 3<>"/dev/tcp/${1%:*}/${1##*:}"
	printf 'GET %s HTTP/1.0\r\nHost: smoke\r\nAccept: %s\r\n\r\n' "$2" "$3" >&3
	sed '1,/^\r*$/d' <&3
	exec 3>&-
}

say "the demo shows what happens"
# A job of a script ignores interrupts unless it is started with job control.
set -m
"$bin" demo --listen 127.0.0.1:0 --period 500ms --speedup 40 >"$work/demo.out" 2>"$work/demo.log" &
demo=$!
set +m
started+=("$demo")
lines() { [ "$(grep -c 'events/s=' "$work/demo.out")" -ge "$1" ]; }
until_true 20 lines 6 || fail "fewer than 6 lines of progress"
grep -q '^node n3 at http://127.0.0.1:[0-9]*, process [0-9]*$' "$work/demo.out" || fail "no line with the URL of the third node"
grep -q $'\033' "$work/demo.out" && fail "terminal codes in plain output"

say "held blocks grow"
held() { sed -n 's/.* held=\([0-9.]*\)\([kMG]\{0,1\}\) .*/\1 \2/p' "$work/demo.out" | awk '{ n = $1 * ($2 == "k" ? 1e3 : $2 == "M" ? 1e6 : $2 == "G" ? 1e9 : 1); print int(n) }'; }
grows() { held | awk 'NR == 1 || $1 < min { min = $1 } $1 > max { max = $1 } END { exit !(max > min && max >= 1000) }'; }
until_true 15 grows || fail "held blocks do not grow: $(held | tr '\n' ' ')"

say "a node is killed, and the others go on"
kill -9 "$(sed -n 's/^node n2 at .*, process \([0-9]*\)$/\1/p' "$work/demo.out")"
survived() { [ "$(grep -c ' nodes=2/3 .* events/s=[1-9]' "$work/demo.out")" -ge 4 ]; }
until_true 20 survived || fail "no progress with two of three nodes"

say "an interrupt ends the demo, its node and its mock workers"
family=$(children "$demo")
[ "$(wc -w <<<"$family")" -ge 3 ] || fail "the demo has no children: '$family'"
kill -INT "$demo"
until_true 15 ended "$demo" || fail "still running 15 s after the interrupt"
rc=0
wait "$demo" || rc=$?
[ $rc -eq 0 ] || fail "exit code $rc after an interrupt"
for pid in $family; do
	ended "$pid" || fail "process $pid was left behind: $(tr '\0' ' ' <"/proc/$pid/cmdline")"
done
grep -q '^sample query' "$work/demo.out" || fail "no sample query"
grep -qE '^[0-9]+ +[1-9][0-9]* ' "$work/demo.out" || fail "the sample query has no answer"

say "a node and mock workers"
"$bin" serve --listen 127.0.0.1:0 --address-file "$work/address" --name smoke >"$work/node.log" 2>&1 &
node=$!
started+=("$node")
until_true 10 test -s "$work/address" || fail "the node did not start"
address=$(cat "$work/address")
server=http://$address
export KVCLUSTER_SERVER=$server
"$bin" mock --workers 4 --register "$server" --model smoke --requests 60 --speedup 0 --keep --quiet --stay >"$work/mock.log" 2>&1 &
mock=$!
started+=("$mock")
active() { [ "$("$bin" workers 2>/dev/null | grep -c ' active ')" -eq 4 ]; }
until_true 15 active || fail "not all workers are active: $("$bin" workers)"
# What the dump says that a worker holds is asked for below: nothing here makes tokens.
ndjson() { http_get "$address" '/dump' 'application/x-ndjson' >"$work/dump.ndjson" && [ "$(wc -l <"$work/dump.ndjson")" -ge 50 ]; }
until_true 15 ndjson || fail "the dump has $(wc -l <"$work/dump.ndjson") lines"
grep -qv '^{.*}$' "$work/dump.ndjson" && fail "a line of the dump is no JSON object: $(grep -m 1 -v '^{.*}$' "$work/dump.ndjson" | cut -c 1-200)"

say "a query, an explanation, the other commands"
hash=$(sed -n '/"parent_hash":null/{s/.*"blocks":\[{"block_hash":[0-9]*,"tokens_hash":\([0-9]*\).*/\1/p;q}' "$work/dump.ndjson")
[ -n "$hash" ] || fail "no root block in the dump"
run query --model smoke --hashes --tokens "$hash"
grep -qE '^[0-9]+ +16 ' "$work/out.log" || fail "the block of the dump is not found by a query: $(cat "$work/out.log")"
instance=$(sed -nE '/^[0-9]+ +16 /{s/ .*//p;q}' "$work/out.log")
run query --model smoke --hashes --tokens "$hash" --explain --instance "$instance"
[ -s "$work/out.log" ] || fail "no explanation"
run status
run status --json
run workers --json
run top --count 2 --period 200ms
run version
rc=0
"$bin" query --model nobody --tokens 1 >"$work/out.log" 2>&1 || rc=$?
[ $rc -eq 3 ] || fail "an unknown model gives exit code $rc, want 3"
run unregister "$instance" --model smoke

say "the node ends cleanly"
kill -INT "$mock" 2>/dev/null || true
kill -TERM "$node"
until_true 10 ended "$node" || fail "the node still runs 10 s after SIGTERM"
rc=0
wait "$node" || rc=$?
[ $rc -eq 0 ] || fail "the node ended with $rc"
grep -q 'level=ERROR\|panic' "$work/node.log" && fail "errors in the node's log"
echo "smoke: all passed"
