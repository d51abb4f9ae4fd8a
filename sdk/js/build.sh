#!/usr/bin/env bash
# Builds a recipe in TypeScript or JavaScript into a component: sdk/js/build.sh SOURCE OUT
# The component imports what its manifest asks for and the source uses, and exports what the source exports.
set -euo pipefail
language=js
. "$(dirname "${BASH_SOURCE[0]}")/../component.sh"
begin "$@"
case "$source" in *.ts|*.js|*.mts|*.mjs) ;; *) fail "$(basename "$source") is no TypeScript or JavaScript file" ;; esac

ln -s "$tools/js/node_modules" "$work/node_modules"
cp "$sdk/js/build.mjs" "$work/build.mjs"
stage() { node "$work/build.mjs" "$@" 2>"$work/log" || fail "$(tail -n 20 "$work/log")"; }

case "$source" in
  *.ts|*.mts)
    # Types are checked here, since the bundler only removes them.
    cat > "$work/tsconfig.json" <<JSON
{ "compilerOptions": { "strict": true, "noEmit": true, "target": "es2023", "module": "esnext", "moduleResolution": "bundler",
    "lib": ["es2023"], "types": [], "noUncheckedIndexedAccess": true, "skipLibCheck": false,
    "paths": { "reef-recipe": ["$sdk/js/src/index.ts"] } },
  "files": ["$source"], "include": ["$sdk/js/types/*.d.ts"] }
JSON
    node "$tools/js/node_modules/typescript/bin/tsc" -p "$work/tsconfig.json" >"$work/log" 2>&1 || fail "types: $(head -n 20 "$work/log")"
    ;;
esac

stage bundle "$source" "$sdk/js/src/index.ts" "$work/bundle.js" > "$work/needs"
world < "$work/needs"
stage componentize "$work/bundle.js" "$work/wit" "$work/component.wasm"
finish "$work/component.wasm"
