#!/bin/bash
# Starts a cluster of three nodes, puts the test scenario's load on it and prints the SLI beside the truth.
# Usage: tools/scenario.sh PROGRAM [flags of `pointsman scenario`]
set -euo pipefail
program=$1
shift
home=$(mktemp -d)
"$program" up --name scenario --nodes 3 --data-dir "$home/data" >"$home/up.log" 2>&1 &
up=$!
finish() {
  "$program" down --name scenario >/dev/null 2>&1 || true
  wait "$up" || true
  rm -rf "$home"
}
trap finish EXIT
for _ in $(seq 600); do
  grep -q '"ready": true' /run/pointsman/scenario/record.json 2>/dev/null && break
  kill -0 "$up" 2>/dev/null || { cat "$home/up.log" >&2; exit 1; }
  sleep 0.1
done
"$program" scenario --name scenario "$@"
