#!/usr/bin/env bash
# Builds a recipe in C into a component: sdk/c/build.sh SOURCE OUT
# The component imports what the linked code calls and exports what the source defines, and nothing else.
set -euo pipefail
language=c
. "$(dirname "${BASH_SOURCE[0]}")/../component.sh"
begin "$@"
case "$source" in *.c) ;; *) fail "$(basename "$source") is no C file" ;; esac

ZIG_GLOBAL_CACHE_DIR="$tools/c/cache" ZIG_LOCAL_CACHE_DIR="$tools/c/cache" \
  "$tools/c/ziglang/zig" cc -target wasm32-wasi -mexec-model=reactor -std=c17 -O2 -Wall -Wextra -Wl,--gc-sections -s \
  -I "$sdk/c" "$source" "$sdk/c/reef_recipe.c" "$sdk/c/generated/recipe.c" -o "$work/core.wasm" 2>"$work/log" \
  || fail "$(cat "$work/log")"
[ ! -s "$work/log" ] || cat "$work/log" >&2

# The world of this component: every import, since the linker drops the ones that nothing calls, and these exports.
defines() { grep -qE "\\b$1[[:space:]]*\\(" "$source"; }
{ printf 'import %s\n' experience training models harness verify tokens state config log metrics
  printf 'export strategy\n'
  if defines reef_migrate; then printf 'export migration\n'; fi
  if defines reef_ingest; then printf 'export live\n'; fi
  if defines reef_transform_request; then printf 'export requests\n'; fi; } | world

"$wasm_tools" component embed "$work/wit" --world guest "$work/core.wasm" -o "$work/embedded.wasm" 2>"$work/log" || fail "$(cat "$work/log")"
"$wasm_tools" component new "$work/embedded.wasm" -o "$work/component.wasm" 2>"$work/log" \
  || fail "$(if grep -q wasi_snapshot_preview1 "$work/log"; then printf 'the source uses files, clocks, randomness or output, which no sandbox provides: '; fi; cat "$work/log")"
finish "$work/component.wasm"
