#!/usr/bin/env bash
# Writes sdk/js/types from the interface; with --check it only says whether they are up to date.
# Run after scripts/setup-languages.sh js --tests.
set -euo pipefail
language=js
. "$(dirname "${BASH_SOURCE[0]}")/../component.sh"
[ -d "$tools/js/node_modules/@bytecodealliance/jco-transpile" ] || fail "the generator is not installed; run scripts/setup-languages.sh js --tests"
tools="$(cd "$tools" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
{ printf 'import %s\n' experience training models harness verify tokens state config log metrics
  printf 'export %s\n' strategy migration live requests; } | world
ln -s "$tools/js/node_modules" "$work/node_modules"
cp "$sdk/js/generate.mjs" "$work/generate.mjs"
node "$work/generate.mjs" "$work/wit" guest "$work/types" 2>"$work/log" || fail "the types cannot be made: $(tail -n 5 "$work/log")"
if [ "${1:-}" = "--check" ]; then
  diff -r "$work/types" "$sdk/js/types" >&2 || fail "sdk/js/types differ from wit/recipe/0.2.0; run sdk/js/generate.sh"
else
  rm -rf "$sdk/js/types"
  mv "$work/types" "$sdk/js/types"
fi
