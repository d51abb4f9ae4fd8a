#!/usr/bin/env bash
# Measures the experience store at a million records into docs/store.json: on SQLite, and on Postgres where
# REEF_BENCH_POSTGRES holds the address of a database that may be filled. Wants a machine that does nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
REEF="${REEF:-target/debug/reef}"
export LD_LIBRARY_PATH="${LIBTORCH:-.deps/libtorch}/lib"
found="$(mktemp -d)"
trap 'rm -rf "$found"' EXIT
"$REEF" bench --store --json --records "${REEF_BENCH_RECORDS:-1000000}" > "$found/sqlite.json"
if [ -n "${REEF_BENCH_POSTGRES:-}" ]; then
  "$REEF" bench --store --json --records "${REEF_BENCH_RECORDS:-1000000}" --postgres-env REEF_BENCH_POSTGRES \
    > "$found/postgres.json"
fi
python3 - "$found" docs/store.json <<'PY'
import json, pathlib, sys
found, target = map(pathlib.Path, sys.argv[1:])
rows = {path.stem: json.loads(path.read_text()) for path in sorted(found.glob("*.json"))}
target.write_text(json.dumps(rows, indent=1) + "\n")
PY
