#!/usr/bin/env bash
# Installs the peer of bench/training: the environment of transformers that bench/serving has, and peft beside it.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
peers="$(cd "$here/../.." && pwd)/.deps/peers"
pins=$(cat "$here/requirements-peft.txt")
"$here/../serving/install.sh" transformers
[ "$(cat "$peers/peft/pins" 2>/dev/null)" != "$pins" ] || exit 0
rm -rf "$peers/peft"
# Without its dependencies: all of them are in the environment, and another torch must not come in.
"$peers/tools/bin/uv" pip install --quiet --no-deps --python "$peers/transformers/bin/python" --target "$peers/peft" -r "$here/requirements-peft.txt" \
  || { echo "training: error: peft cannot be installed (offline?); run this again with a network" >&2; exit 1; }
printf '%s' "$pins" > "$peers/peft/pins"
