#!/usr/bin/env bash
# Runs all tests and counts those that did not run: tools/unit.sh [required]
# With `required` none may be skipped. Tests against programs from outside are listed with what they need.
set -uo pipefail
cd "$(dirname "$0")/.."
required=${1:-}
mkdir -p target
export POINTSMAN_SKIPS=$PWD/target/skips
: > "$POINTSMAN_SKIPS"
[ -z "$required" ] || export POINTSMAN_REQUIRE_NETNS=1
${CARGO:-cargo} nextest run --locked --workspace ${NEXTEST_ARGUMENTS:-}
status=$?
# A test that is tried twice is skipped twice.
skipped=$(sort -u "$POINTSMAN_SKIPS")
count=$(grep -c . <<< "$skipped")
[ "$count" = 0 ] || sed 's/^/skipped: /' <<< "$skipped"
grep -rhoE '#\[ignore = "needs PEER_[A-Z_]+' --include='*.rs' bins crates | sed 's/.*needs //' | sort | uniq -c |
  while read -r tests variable; do echo "not run: $tests tests that need $variable=program"; done
echo "tests: $count skipped${required:+, 0 allowed}"
[ -z "$required" ] || [ "$count" = 0 ] || exit 1
exit "$status"
