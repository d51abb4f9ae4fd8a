#!/usr/bin/env bash
# Builds best-of and the template of every language that is installed, and runs best-of on the inputs of best-of.json.
# Run after scripts/setup-languages.sh --tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools="${REEF_LANGUAGES:-$PWD/../.deps/languages}"
[ -d "$tools/js/node_modules/@bytecodealliance/jco-transpile" ] \
  || { printf 'tests/run.sh: error: the runner is not installed; run scripts/setup-languages.sh --tests\n' >&2; exit 1; }
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

components=()
for language in c js python; do
  [ -f "$tools/$language/pins" ] || { printf 'tests/run.sh: no tools for %s, left out\n' "$language" >&2; continue; }
  "$language/build.sh" "$language"/template/my[_-]recipe.* "$work/template.wasm"
  "$language/build.sh" "$language"/examples/best[_-]of.* "$work/best-of-$language.wasm"
  components+=("$work/best-of-$language.wasm")
done

ln -s "$(cd "$tools" && pwd)/js/node_modules" "$work/node_modules"
cp tests/run.mjs "$work/run.mjs"
node "$work/run.mjs" tests/best-of.json "${components[@]}"
