#!/usr/bin/env bash
# Builds a recipe in Python into a component: sdk/python/build.sh SOURCE OUT
# The component imports what its manifest asks for and exports what the class defines, and nothing else.
set -euo pipefail
language=python
. "$(dirname "${BASH_SOURCE[0]}")/../component.sh"
begin "$@"

module="$(basename "$source" .py)"
[[ "$module" =~ ^[a-z_][a-z0-9_]*$ ]] && [ "$source" = "$(dirname "$source")/$module.py" ] \
  || fail "$(basename "$source") is not the name of a Python module; use lower-case letters, digits and _, e.g. my_recipe.py"
componentize() { PYTHONPATH="$tools/python" python3 "$tools/python/bin/componentize-py" -q -d "$work/wit" -w guest "$@"; }

# With every interface there, the recipe is asked what it needs; nothing of the host answers here.
everything='experience training models harness verify tokens state config log metrics'
{ printf 'import %s\n' $everything; printf 'export %s\n' strategy migration live requests; } | world
componentize bindings "$work/everything" 2>"$work/log" || fail "the bindings cannot be made: $(cat "$work/log")"
PYTHONPATH="$work/everything:$sdk/python:$(dirname "$source")" PYTHONDONTWRITEBYTECODE=1 \
  python3 "$sdk/python/describe.py" "$module" >"$work/needs" 2>"$work/log" || fail "$(basename "$source") cannot be loaded: $(tail -n 1 "$work/log")"
world < "$work/needs"

mkdir "$work/app"
printf 'import %s\nfrom reef_recipe.component import Live, Migration, Requests, Strategy\n' "$module" > "$work/app/reef_app.py"
componentize componentize --stub-wasi -p "$work/app" -p "$sdk/python" -p "$(dirname "$source")" reef_app -o "$work/component.wasm" \
  >"$work/log" 2>&1 || fail "componentize-py: $(tail -n 20 "$work/log")"
finish "$work/component.wasm"
