
usage() {
  cat <<END
usage: reef-$reef_adapter COMMAND
  run [ARGUMENT...]                  start $reef_title on the installed release
  task TEXT                        one task without a person
  report --score S [--feedback T] [--session ID | --receipt ID]
  evolve TEXT [--wait]             ask for a change of the harness
  wait ID                          wait until such a change is decided
  page                             address of the page of this release
  update [--release ID]            install the served release, or that one
  setup [--yes]                    what this release needs
  doctor                           check everything
  uninstall [--purge]              remove it; --purge also what $reef_title wrote
END
}

cleanup() { [ -z "${scratch-}" ] || rm -rf "$scratch"; }

begin() {
  umask 077
  tools
  token
  reef_home=$reef_root/home
  program=$(cat "$reef_root/program-path" 2>/dev/null) || fail "nothing is installed under $reef_root; install it again" 3
  scratch=$(mktemp -d)
  trap cleanup EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

tampered() { fail "$1 is not as it was installed; run: reef-$reef_adapter update" 3; }

verify() {
  [ -f "$reef_root/manifest" ] && [ "$(sha256 "$reef_root/manifest")" = "$reef_manifest" ] || tampered "$reef_root/manifest"
  while read -r _ path; do
    no_links "$path"
    [ -f "$reef_root/$path" ] || tampered "$reef_root/$path"
  done <"$reef_root/manifest"
  (cd "$reef_root" && sha256sums -c manifest) >"$scratch/sums" 2>/dev/null ||
    tampered "$reef_root/$(awk -F ': ' '$NF != "OK" { print $1; exit }' "$scratch/sums")"
}

# Files that the program itself changes start from the release's content.
restore() {
  while read -r _ path; do
    case $path in restore/*) ;; *) continue ;; esac
    own=home/${path#restore/}
    no_links "$own"
    mkdir -p "$reef_root/${own%/*}"
    rm -f "$reef_root/$own"
    cp "$reef_root/$path" "$reef_root/$own"
  done <"$reef_root/manifest"
}

requirements() {
  reef_requirements >"$scratch/requirements"
  while IFS='	' read -r kind name reason; do
    met "$kind" "$name" || fail "this release needs the $kind $name ($reason); run: reef-$reef_adapter setup" 4
  done <"$scratch/requirements"
}

served() {
  request HEAD /reef/harness
  [ "$code" = 200 ] && header x-reef-release-id
}

notice() {
  [ "${REEF_NOTICE-1}" != 0 ] || return 0
  now=$(served) || return 0
  case $now in
    "" | "$reef_release" | *[!0-9a-f]*) ;;
    *) say "release $now is served, and $reef_release is installed; run: reef-$reef_adapter update" ;;
  esac
}

prepare() {
  verify
  requirements
  restore
  notice
  REEF_SESSION=${REEF_SESSION:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
  case $REEF_SESSION in
    *[!A-Za-z0-9._:-]*) fail "REEF_SESSION holds a character that no session has" 2 ;;
  esac
  printf '%s\n' "$REEF_SESSION" >"$reef_root/session"
  # Some programs refuse to start without a key, also where the server asks for none.
  REEF_TOKEN=${REEF_TOKEN:-none}
  export REEF_SESSION REEF_TOKEN
  cleanup
  # The program works with the person's own locale and permissions.
  if [ -n "$reef_locale" ]; then LC_ALL=$reef_locale; else unset LC_ALL; fi
  umask "$reef_umask"
  reef_environment
}

# json TEXT: as a JSON string. What printf would read as more than a byte is written as \u.
json() {
  bytes=$(printf '%s' "$1" | od -An -v -tu1 | awk '{
    for (i = 1; i <= NF; i++)
      if ($i < 32 || $i == 34 || $i == 37 || $i == 92 || $i == 127) printf "\\\\u%04x", $i; else printf "\\%03o", $i
  }')
  # shellcheck disable=SC2059  # the format is made of escapes on purpose
  printf "\"$bytes\""
}

answered() {
  case $code in
    200 | 201 | 202) ;;
    000) fail "$reef_url does not answer; start the server, or see reef-$reef_adapter doctor" 5 ;;
    *) fail "the server answered $code: $(reply)" 5 ;;
  esac
}

report() {
  score='' feedback='' session='' receipt=''
  while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || fail "$1 needs a value" 2
    case $1 in
      --score) score=$2 ;;
      --feedback) feedback=$2 ;;
      --session) session=$2 ;;
      --receipt) receipt=$2 ;;
      *) fail "report does not know '$1'" 2 ;;
    esac
    shift 2
  done
  printf '%s\n' "$score" | awk 'NR > 1 || !/^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$/ { bad = 1 } END { exit bad }' ||
    fail "report needs --score with a number" 2
  {
    printf '{"score":%s' "$score"
    [ -z "$feedback" ] || printf ',"feedback":%s' "$(json "$feedback")"
    if [ -n "$receipt" ]; then
      printf ',"references":[%s]' "$(json "$receipt")"
    else
      [ -n "$session" ] || session=$(cat "$reef_root/session" 2>/dev/null) || fail "there was no run to report on; name a --session or a --receipt" 2
      printf ',"session":%s' "$(json "$session")"
    fi
    printf '}'
  } >"$scratch/body"
  request POST /reef/report "$scratch/body"
  answered
  field agent_record_id
}

evolve() {
  text='' wait=no
  while [ $# -gt 0 ]; do
    case $1 in
      --wait) wait=yes ;;
      *) [ -z "$text" ] || fail "evolve takes one text; put it in quotes" 2; text=$1 ;;
    esac
    shift
  done
  [ -n "$text" ] || fail "evolve needs a text" 2
  {
    printf '{"text":%s,"release_id":%s' "$(json "$text")" "$(json "$reef_release")"
    [ ! -f "$reef_root/session" ] || printf ',"session":%s' "$(json "$(cat "$reef_root/session")")"
    printf '}'
  } >"$scratch/body"
  request POST /reef/train "$scratch/body"
  answered
  id=$(field agent_record_id)
  printf '%s\n' "$id"
  [ "$wait" = no ] || wait_for "$id"
}

wait_for() {
  case ${1-} in '' | *[!A-Za-z0-9._:-]*) fail "wait needs the id that evolve printed" 2 ;; esac
  polls=0
  while :; do
    request GET "/reef/harness/requests/$1/progress"
    answered
    state=$(field state)
    case $state in
      released) say "released as $(field release_id); run: reef-$reef_adapter update"; return 0 ;;
      held) say "held for review: $(field reason)"; return 0 ;;
      rejected | failed | skipped) fail "$state: $(field reason)" 1 ;;
      '') fail "the server told no state: $(reply)" 5 ;;
    esac
    polls=$((polls + 1))
    [ "$polls" -lt "${REEF_POLLS:-1800}" ] || fail "still $state; wait again with: reef-$reef_adapter wait $1" 1
    sleep "${REEF_POLL_S:-2}"
  done
}

update() {
  query="adapter=$reef_adapter&version=$reef_version"
  case ${1-} in
    '') ;;
    --release)
      case ${2-} in '' | *[!0-9a-f]*) fail "--release needs the id of a release" 2 ;; esac
      query="$query&release_id=$2"
      ;;
    *) fail "update does not know '$1'" 2 ;;
  esac
  request GET "/reef/harness/install?$query"
  answered
  REEF_HARNESS_ROOT=${reef_root%/*}
  case $0 in */*) REEF_BIN_DIR=$(cd "${0%/*}" && pwd) ;; *) REEF_BIN_DIR=$(pwd) ;; esac
  export REEF_HARNESS_ROOT REEF_BIN_DIR REEF_TOKEN
  case $program in
    "$reef_root"/program/*) ;;
    *) REEF_HARNESS_PROGRAM=$program; export REEF_HARNESS_PROGRAM ;;
  esac
  sh "$scratch/reply"
}

setup() {
  reef_requirements >"$scratch/requirements"
  unmet=0
  while IFS='	' read -r kind name reason <&3; do
    if met "$kind" "$name"; then
      printf 'ok       %s %s\n' "$kind" "$name"
      continue
    fi
    if [ "$kind" = permission ]; then
      answer=no
      if [ "${1-}" = --yes ]; then
        answer=yes
      elif [ -t 0 ]; then
        printf 'allow %s? %s [yes/no] ' "$name" "$reason"
        read -r answer || answer=no
      fi
      if [ "$answer" = yes ]; then
        printf '%s\n' "$name" >>"$reef_root/permissions"
        printf 'allowed  %s\n' "$name"
        continue
      fi
    fi
    printf 'missing  %s %s: %s\n' "$kind" "$name" "$reason"
    unmet=1
  done 3<"$scratch/requirements"
  [ "$unmet" = 0 ] || exit 4
}

# check NAME COMMAND...: one line of the doctor.
check() {
  what=$1
  shift
  if told=$("$@" 2>&1); then printf 'ok    %s\n' "$what"; else
    printf 'wrong %s: %s\n' "$what" "$told"
    sick=1
  fi
}
answers() { request GET /healthz && answered; }
reads() { request HEAD /reef/harness; [ "$code" = 200 ] || fail "the server answered $code"; }
right_version() { found=$(program_version); [ "$found" = "$reef_version" ] || fail "it is '${found:-unknown}', not $reef_version"; }

doctor() {
  sick=0
  check "files of release $reef_release" verify
  check "$reef_title $reef_version at $program" right_version
  check "$reef_url answers" answers
  check "the token may read the scenario $reef_scenario" reads
  check "what the release needs" requirements
  [ "$sick" = 0 ] || exit 1
}

uninstall() {
  if [ "${1-}" = --purge ]; then
    rm -rf "$reef_root"
  elif [ -f "$reef_root/manifest" ]; then
    while read -r _ path; do
      no_links "$path"
      rm -f "$reef_root/$path"
      case $path in restore/*) rm -f "$reef_root/home/${path#restore/}" ;; esac
      [ ! -e "$reef_root/$path.before-reef" ] || mv -f "$reef_root/$path.before-reef" "$reef_root/$path"
      empty_folders "home/${path#*/}"
    done <"$reef_root/manifest"
    rm -rf "$reef_root/program" "$reef_root/restore"
    rm -f "$reef_root/manifest" "$reef_root/program-path" "$reef_root/permissions" "$reef_root/session"
    rmdir "$reef_root/home" "$reef_root" 2>/dev/null || say "what $reef_title wrote is kept under $reef_root; remove it with uninstall --purge, or by hand"
  fi
  rm -f "$0"
}

command=${1-help}
[ $# -eq 0 ] || shift
case $command in
  run) begin; prepare; reef_start "$@" ;;
  task) [ $# -eq 1 ] || fail "task takes one text; put it in quotes" 2; begin; prepare; reef_task "$1" ;;
  report) begin; report "$@" ;;
  evolve) begin; evolve "$@" ;;
  wait) begin; wait_for "${1-}" ;;
  page) printf '%s/reef/harness/releases/%s/page\n' "$reef_url" "$reef_step" ;;
  update) begin; update "$@" ;;
  setup) begin; setup "${1-}" ;;
  doctor) begin; doctor ;;
  uninstall) uninstall "${1-}" ;;
  version) printf '%s\n' "$reef_release" ;;
  help | --help | -h) usage ;;
  *) usage >&2; exit 2 ;;
esac
