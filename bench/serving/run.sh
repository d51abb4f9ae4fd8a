#!/usr/bin/env bash
# Installs the peers, builds Reef, runs the comparison, writes docs/serving.json and docs/serving.md.
#   bench/serving/run.sh                                           everything, about half an hour on a quiet machine
#   bench/serving/run.sh --only gateway --runs 1 --seconds 2       words go to run.py; see its --help
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here/../.."
scripts/setup.sh
"$here/install.sh"
[ -n "${REEF:-}" ] || cargo build --release -p reef
exec python3 "$here/run.py" "$@"
