#!/usr/bin/env bash
# Installs the peer, builds Reef, runs the comparison, writes docs/training.json, docs/training.md and docs/training.png.
#   bench/training/run.sh                                everything, about ten minutes on a quiet machine
#   bench/training/run.sh --rounds 1 --threads 1         words go to run.py; see its --help
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here/../.."
scripts/setup.sh
"$here/install.sh"
[ -n "${REEF:-}" ] || { cargo build --release -p reef; make recipes; }
exec python3 "$here/run.py" "$@"
