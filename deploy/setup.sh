#!/usr/bin/env bash
# Installs the system packages that the build needs, if they are missing. Works as
# root or with sudo; where apt is not there it says what to install.
set -euo pipefail

missing=()
command -v pkg-config >/dev/null || missing+=(pkg-config)
command -v cc >/dev/null || command -v gcc >/dev/null || missing+=(gcc libc6-dev)
pkg-config --exists libzmq 2>/dev/null || missing+=(libzmq3-dev)

if ! command -v go >/dev/null; then
	echo "kvcluster needs Go 1.26 or newer: https://go.dev/doc/install" >&2
	exit 1
fi
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
	echo "These are missing and apt-get is not here to install them: ${missing[*]}" >&2
	echo "Install the C compiler, pkg-config and the libzmq development files of your system, then run make again." >&2
	exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
	if ! command -v sudo >/dev/null; then
		echo "These are missing: ${missing[*]}. Run as root: apt-get install ${missing[*]}" >&2
		exit 1
	fi
	as_root=(sudo)
fi
echo "installing: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update -qq && DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "apt-get could not install ${missing[*]}" >&2
	exit 1
fi
