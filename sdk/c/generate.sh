#!/usr/bin/env bash
# Writes sdk/c/generated from the interface; with --check it only says whether it is up to date. Needs cargo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
interface=../../wit/recipe/0.2.0
target=generated
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
[ "${1:-}" != "--check" ] || target="$work"
CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/../../target}" cargo run --quiet --locked --manifest-path generate/Cargo.toml -- "$interface" "$target" \
  || { printf 'c/generate.sh: error: the generator does not build or refuses the interface\n' >&2; exit 1; }
if [ "${1:-}" = "--check" ]; then
  diff -r "$work" generated >&2 || { printf 'c/generate.sh: error: sdk/c/generated differs from wit/recipe/0.2.0; run sdk/c/generate.sh\n' >&2; exit 1; }
fi
