#!/usr/bin/env bash
# Runs the demo on three seeds and writes docs/learning.json (one summary a line) and docs/learning.md.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p docs
results=$(mktemp)
trap 'rm -f "$results"' EXIT
for seed in ${SEEDS:-1 2 3}; do
  "${REEF:-target/debug/reef}" demo --seed "$seed" --page "docs/learning-$seed.html" --json | tail -n 1 | tee -a "$results"
done
cp "$results" docs/learning.json
python3 - <<'PY'
import json
rows = [json.loads(line) for line in open("docs/learning.json")]
families = list(dict.fromkeys(name for row in rows for name in row["families"]))
with open("docs/learning.md", "w") as out:
    out.write("| family | seed | before | after | gain (95 % interval) | steps | releases | seconds |\n|---|---|---|---|---|---|---|---|\n")
    for name in families:
        for row in rows:
            f = row["families"][name]
            low, high = f["interval"]
            gain = f["held_out_after"] - f["held_out_before"]
            out.write(f"| {name} | {row['seed']} | {f['held_out_before']:.0%} | {f['held_out_after']:.0%} | "
                      f"{100 * gain:+.0f} ({100 * low:+.0f} to {100 * high:+.0f}) | {f['steps']} | {f['releases']} | {f['seconds']:.0f} |\n")
PY
cat docs/learning.md
