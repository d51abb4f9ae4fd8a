#!/usr/bin/env bash
# Kills a real server at every point of a step where something becomes durable, so many times each, and so many times
# while it records, on both databases. docs/faults.json keeps what came of it; a lost record or another release fails.
# REEF_KILL_REPEATS (100) and REEF_KILL_ROUNDS (1000) set how often, REEF_KILL_AT_ONCE (6) how many servers live at once:
# the full count takes hours.
set -euo pipefail
cd "$(dirname "$0")/.."
export REEF_KILL_REPEATS="${REEF_KILL_REPEATS:-100}" REEF_KILL_ROUNDS="${REEF_KILL_ROUNDS:-1000}"
# What was found so far; a run that was stopped, or that repeated less, goes on where it was.
export REEF_KILL_REPORTS="$PWD/target/kill-reports"
mkdir -p "$REEF_KILL_REPORTS"
cargo build -p reef
cargo test -p reef-tests flows::kill -- --nocapture --test-threads="${REEF_KILL_AT_ONCE:-6}"
python3 scripts/merge-faults.py "$REEF_KILL_REPORTS" docs/faults.json
rm -r "$REEF_KILL_REPORTS"
