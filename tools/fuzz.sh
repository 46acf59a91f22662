#!/usr/bin/env bash
# Searches for inputs that break a law of crates/lab/fuzz-targets, with libFuzzer: tools/fuzz.sh SECONDS [TARGET...]
# New inputs are kept in target/fuzz/TARGET, one that breaks something as target/fuzz/TARGET-crash-*.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
host=$(rustc -vV | sed -n 's/^host: //p')
# What `-Z sanitizer-coverage` would ask for, in the words of the stable compiler.
RUSTFLAGS="-Cpasses=sancov-module $(printf -- '-Cllvm-args=-sanitizer-coverage-%s ' \
  level=4 inline-8bit-counters pc-table trace-compares)"
export RUSTFLAGS
# With a target named, build scripts and macros are built without counters, which only the fuzzer's runtime has.
${CARGO:-cargo} build --locked --release --manifest-path fuzz/Cargo.toml --target-dir target/fuzz-build --target "$host"
corpora=crates/lab/fuzz-targets/corpora
[ $# -gt 0 ] || set -- "$corpora"/*
for target; do
  target=${target##*/}
  mkdir -p "target/fuzz/$target"
  echo "fuzz: $target for $seconds s"
  FUZZ_TARGET=$target "target/fuzz-build/$host/release/pointsman-fuzz" "target/fuzz/$target" "$corpora/$target" \
    -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="target/fuzz/$target-" -verbosity=1 2>&1 | tee "target/fuzz/$target.log" | grep -vE '(REDUCE|NEW|RELOAD|pulse)'
done
