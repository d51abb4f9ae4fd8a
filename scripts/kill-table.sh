#!/usr/bin/env bash
# Kills a real server at every point of a step where something becomes durable, so many times each, and so many times
# while it records, on both databases. docs/faults.json keeps what came of it; a lost record or another release fails.
# REEF_KILL_REPEATS (100) and REEF_KILL_ROUNDS (1000) set how often, REEF_KILL_AT_ONCE (6) how many of the six tests run
# at once, up to three servers each: the full count takes hours. Servers are forked from a nest
# (tests/flows/kill/nest.c), which has libtorch loaded.
set -euo pipefail
cd "$(dirname "$0")/.."
export REEF_KILL_REPEATS="${REEF_KILL_REPEATS:-100}" REEF_KILL_ROUNDS="${REEF_KILL_ROUNDS:-1000}"
# What was found so far; a run that was stopped, or that repeated less, goes on where it was.
export REEF_KILL_REPORTS="$PWD/target/kill-reports"
mkdir -p "$REEF_KILL_REPORTS"
# The programs are copied, so that others may be built meanwhile.
ground="$(mktemp -d)"
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$ground"' EXIT
tests="$(cargo build --workspace --lib --bins --tests --message-format=json | python3 -c '
import json, sys
rows = [json.loads(line) for line in sys.stdin]
print(next(row["executable"] for row in rows if row.get("executable") and "tests/main.rs" in row["target"]["src_path"]))')"
mkdir -p "$ground/debug/deps"
cp target/debug/reef "$ground/debug/"
cp "$tests" "$ground/debug/deps/tests"
cp -r --parents target/wasm32-wasip2/recipe/*.wasm "$ground/" && mv "$ground/target/wasm32-wasip2" "$ground/"
export LD_LIBRARY_PATH="${LIBTORCH:-$PWD/.deps/libtorch}/lib" REEF_NEST="$ground/nest" OMP_WAIT_POLICY=passive
sources=tests/flows/kill
cc -shared -fPIC -O1 -o "$ground/nest.so" $sources/nest.c $sources/kill_at.c -ldl
cc -static -O1 -o "$ground/hatch" $sources/hatch.c
LD_PRELOAD="$ground/nest.so" "$ground/debug/reef" &
until [ -S "$REEF_NEST" ]; do sleep 0.1; done
(cd tests && REEF_TEST_PROGRAM="$ground/hatch" "$ground/debug/deps/tests" flows::kill --nocapture \
  --test-threads="${REEF_KILL_AT_ONCE:-6}")
python3 scripts/merge-faults.py "$REEF_KILL_REPORTS" docs/faults.json
rm -r "$REEF_KILL_REPORTS"
