
# What the install script and the wrapper share.

say() { printf 'reef-%s: %s\n' "$reef_adapter" "$1" >&2; }
fail() { say "$1"; exit "${2:-1}"; }
need() { command -v "$1" >/dev/null 2>&1 || fail "'$1' is not installed; install it and run this again"; }

tools() {
  need curl
  need awk
  need od
  need mktemp
  if command -v sha256sum >/dev/null 2>&1; then
    sha256sums() { sha256sum "$@"; }
  elif command -v shasum >/dev/null 2>&1; then
    sha256sums() { shasum -a 256 "$@"; }
  else
    fail "neither 'sha256sum' nor 'shasum' is installed; install one and run this again"
  fi
}

sha256() { sha256sums <"$1" | awk '{ print $1; exit }'; }

# The token comes from the environment, is never written, and reaches curl on its standard input only.
token() {
  REEF_TOKEN=${REEF_TOKEN-}
  case $REEF_TOKEN in
    *[!A-Za-z0-9._~+/=-]*) fail "REEF_TOKEN holds a character that no token has; set it again" 2 ;;
  esac
}

# no_links PATH: neither the root, nor the file, nor a folder between them is a link.
no_links() {
  links_at=$reef_root
  links_rest=$1
  [ ! -L "$links_at" ] || fail "$links_at is a link; remove it and install again" 3
  while :; do
    links_at=$links_at/${links_rest%%/*}
    [ ! -L "$links_at" ] || fail "$links_at is a link; remove it and install again" 3
    [ "$links_rest" != "${links_rest#*/}" ] || return 0
    links_rest=${links_rest#*/}
  done
}

# empty_folders PATH: removes the folders of a removed file that are empty now, up to the home.
empty_folders() {
  folder=${1%/*}
  while [ "$folder" != "${folder%/*}" ]; do
    rmdir "$reef_root/$folder" 2>/dev/null || return 0
    folder=${folder%/*}
  done
}

# request METHOD PATH [FILE OF THE BODY] [HEADER]: the answer goes to $scratch/reply, its headers to $scratch/headers,
# its code to $code; 000 when there is none.
request() {
  code=$(
    {
      printf 'header = "x-reef-scenario: %s"\n' "$reef_scenario"
      [ -z "$REEF_TOKEN" ] || printf 'header = "Authorization: Bearer %s"\n' "$REEF_TOKEN"
      [ -z "${4-}" ] || printf 'header = "%s"\n' "$4"
    } | if [ "$1" = HEAD ]; then
      curl --disable --config - --silent --max-time 2 --head --output "$scratch/headers" --write-out '%{http_code}' "$reef_url$2"
    elif [ -n "${3-}" ]; then
      curl --disable --config - --silent --show-error --max-time 300 --request "$1" --header 'content-type: application/json' \
        --data-binary "@$3" --dump-header "$scratch/headers" --output "$scratch/reply" --write-out '%{http_code}' "$reef_url$2"
    else
      curl --disable --config - --silent --show-error --max-time 300 --request "$1" \
        --dump-header "$scratch/headers" --output "$scratch/reply" --write-out '%{http_code}' "$reef_url$2"
    fi
  ) || code=000
}

# field NAME: the first value of a text field of the reply. Inside a JSON string each quote has a backslash before it,
# so a text cannot pass for a field.
field() {
  awk -v "name=\"$1\"" '{
    at = index($0, name)
    while (at) {
      rest = substr($0, at + length(name))
      if (match(rest, /^[ \t]*:[ \t]*"[^"\\]*"/)) {
        value = substr(rest, RSTART, RLENGTH); sub(/^[^"]*"/, "", value); sub(/"$/, "", value); print value; exit
      }
      $0 = rest; at = index($0, name)
    }
  }' "$scratch/reply"
}

# header NAME IN LOWER CASE: its value in the last answer.
header() {
  awk -v "name=$1:" 'tolower(substr($0, 1, length(name))) == name {
    value = substr($0, length(name) + 1); gsub(/^[ \t]+|[ \t\r]+$/, "", value); print value; exit
  }' "$scratch/headers"
}

# What the server said, on one line, without control characters: it goes to a terminal.
reply() { tr -d '\000-\011\013-\037\177' <"$scratch/reply" | head -n 5; }

# program_version: what the program says of itself.
program_version() {
  (reef_environment && "$program" --version </dev/null 2>/dev/null) |
    awk 'match($0, /[0-9]+\.[0-9]+\.[0-9]+[-.+0-9A-Za-z]*/) { print substr($0, RSTART, RLENGTH); exit }'
}

# met KIND NAME: is a requirement of the release met?
met() {
  case $1 in
    env) eval "[ -n \"\${$2-}\" ]" ;;
    permission) [ -f "$reef_root/permissions" ] && grep -qx -e "$2" "$reef_root/permissions" ;;
    service) curl --disable --silent --output /dev/null --max-time 5 "$2" </dev/null ;;
  esac
}
