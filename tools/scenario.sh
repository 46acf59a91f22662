#!/bin/bash
# Starts a cluster of three nodes, plays `pointsman scenario` on it and prints what came of it.
# Usage: tools/scenario.sh PROGRAM [rolling] [flags of `pointsman scenario`]
# Another program may run the cluster: CLUSTER_PROGRAM=path. RUNTIME=containerd has its pods run from an image.
set -euo pipefail
program=$1
shift
cluster=${CLUSTER_PROGRAM:-$program}
home=$(mktemp -d)
"$cluster" up --name scenario --nodes 3 --runtime "${RUNTIME:-processes}" --data-dir "$home/data" >"$home/up.log" 2>&1 &
up=$!
finish() {
  "$cluster" down --name scenario >/dev/null 2>&1 || true
  wait "$up" || true
  rm -rf "$home"
}
trap finish EXIT
for _ in $(seq 600); do
  # A record may be left from a cluster that was killed.
  record=$(cat /run/pointsman/scenario/record.json 2>/dev/null || true)
  [[ $record == *"\"pid\": $up,"* && $record == *'"ready": true'* ]] && break
  kill -0 "$up" 2>/dev/null || { cat "$home/up.log" >&2; exit 1; }
  sleep 0.1
done
"$program" scenario --name scenario --log warn "$@"
