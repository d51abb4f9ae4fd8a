
# stage PATH MODE SHA256 [cut]: standard input is the content; with 'cut', its last line end is not.
stage() {
  mkdir -p "$scratch/tree/${1%/*}"
  cat >"$scratch/tree/$1"
  if [ "${4-}" = cut ]; then
    size=$(wc -c <"$scratch/tree/$1")
    head -c "$((size - 1))" "$scratch/tree/$1" >"$scratch/cut"
    mv -f "$scratch/cut" "$scratch/tree/$1"
  fi
  [ "$(sha256 "$scratch/tree/$1")" = "$3" ] || fail "$1: its sha256 differs; download this script again"
  chmod "$2" "$scratch/tree/$1"
}

install_program() {
  prefix=$reef_root/program
  if [ -n "${REEF_HARNESS_PROGRAM-}" ]; then
    program=$REEF_HARNESS_PROGRAM
  elif [ "$reef_install" = npm ]; then
    program=$prefix/node_modules/.bin/$reef_binary
    if [ "$(cat "$prefix/pin" 2>/dev/null)" != "$reef_package@$reef_pin" ]; then
      need npm
      say "installing $reef_package $reef_pin under $prefix"
      mkdir -p "$prefix"
      npm install --prefix "$prefix" --no-audit --no-fund --loglevel=error "$reef_package@$reef_pin" </dev/null >&2 ||
        fail "npm cannot install $reef_package $reef_pin; see above, and run this again"
      printf '%s' "$reef_package@$reef_pin" >"$prefix/pin"
    fi
  elif [ "$reef_install" = pypi ]; then
    program=$prefix/bin/$reef_binary
    if [ "$(cat "$prefix/pin" 2>/dev/null)" != "$reef_package@$reef_pin" ]; then
      need python3
      say "installing $reef_package $reef_pin under $prefix"
      python3 -m venv "$prefix" </dev/null >&2 || fail "python3 cannot make a virtual environment; install its venv module"
      "$prefix/bin/python" -m pip install --quiet "$reef_package==$reef_pin" </dev/null >&2 ||
        fail "pip cannot install $reef_package $reef_pin; see above, and run this again"
      printf '%s' "$reef_package@$reef_pin" >"$prefix/pin"
    fi
  else
    program=$(command -v "$reef_binary") || fail "'$reef_binary' is not installed: $reef_told"
  fi
  case $program in
    /*) [ -x "$program" ] || fail "$program is not a program" ;;
    *) fail "'$program' is not an absolute path; set REEF_HARNESS_PROGRAM to one" ;;
  esac
  reef_home=$scratch/home
  mkdir -p "$reef_home"
  found=$(program_version)
  [ "$found" = "$reef_version" ] ||
    fail "$program is version '${found:-unknown}', and these files are for $reef_version; install that version, or ask the server for files for yours (version=)"
  reef_home=$reef_root/home
}

# Moves what was staged to its place. A file that was there and is not Reef's is kept beside it.
place_files() {
  while read -r _ path; do
    no_links "$path"
    if [ -e "$reef_root/$path" ] && ! listed "$path" "$reef_root/manifest"; then
      mv -f "$reef_root/$path" "$reef_root/$path.before-reef"
      say "kept your own $path as $path.before-reef"
    fi
    mkdir -p "$reef_root/${path%/*}"
    mv -f "$scratch/tree/$path" "$reef_root/$path"
  done <"$scratch/manifest"
  [ -f "$reef_root/manifest" ] || return 0
  while read -r _ path; do
    listed "$path" "$scratch/manifest" && continue
    no_links "$path"
    rm -f "$reef_root/$path"
    empty_folders "$path"
  done <"$reef_root/manifest"
}

# listed PATH MANIFEST
listed() {
  [ -f "$2" ] && awk -v "path=$1" '$2 == path { found = 1 } END { exit !found }' "$2"
}

place_wrapper() {
  bin=${REEF_BIN_DIR:-$HOME/.local/bin}
  wrapper=$bin/reef-$reef_adapter
  mkdir -p "$bin"
  if [ -L "$wrapper" ] || { [ -e "$wrapper" ] && ! grep -q '^# The wrapper of Reef' "$wrapper"; }; then
    fail "$wrapper exists and is not Reef's; move it away and run this again"
  fi
  {
    printf '#!/bin/sh\n'
    printf "reef_root='%s'\n" "$(printf '%s' "$reef_root" | sed "s/'/'\\\\''/g")"
    cat "$scratch/tree/meta/wrapper"
  } >"$scratch/wrapper"
  chmod 700 "$scratch/wrapper"
  mv -f "$scratch/wrapper" "$wrapper"
  case ":$PATH:" in *":$bin:"*) ;; *) say "$bin is not in PATH; add it, or start $wrapper" ;; esac
}

smoke() {
  printf '%s' "$reef_smoke" >"$scratch/smoke"
  request POST "$reef_endpoint" "$scratch/smoke" 'x-reef-capture: off'
  [ "$code" = 200 ] || fail "installed, but one inference answered $code: $(reply)" 5
  say "one inference answered; receipt $(header x-reef-agent-record-id)"
}

main() {
  umask 077
  tools
  token
  : "${HOME:?HOME is not set}"
  reef_root=${REEF_HARNESS_ROOT:-$HOME/.reef/harness}/$reef_adapter
  case $reef_root in /*) ;; *) fail "REEF_HARNESS_ROOT is not an absolute path" 2 ;; esac
  case $reef_root in *'
'*) fail "the path of the root holds a line end" 2 ;; esac
  mkdir -p "$reef_root"
  no_links home
  mkdir "$reef_root/lock" 2>/dev/null || fail "another install is running; if not, remove $reef_root/lock"
  scratch=$(mktemp -d "$reef_root/stage.XXXXXX") || { rmdir "$reef_root/lock"; fail "no folder can be made in $reef_root"; }
  trap 'rm -rf "$scratch"; rmdir "$reef_root/lock"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  stage_files
  mv -f "$scratch/tree/meta/manifest" "$scratch/manifest"
  install_program
  place_files
  printf '%s\n' "$program" >"$reef_root/program-path"
  place_wrapper
  mv -f "$scratch/manifest" "$reef_root/manifest"
  say "installed release $reef_release for $reef_title $reef_version; start it with: reef-$reef_adapter run"
  reef_left_out
  reef_requirements | while IFS='	' read -r kind name reason; do
    met "$kind" "$name" || say "this release needs the $kind $name ($reason); run: reef-$reef_adapter setup"
  done
  [ "${REEF_SMOKE-1}" = 0 ] || smoke
}

# A download that ends early is no complete command, so nothing of it runs.
if :; then
  main
fi
