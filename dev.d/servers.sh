# shellcheck shell=bash
# Local servers: one file each in servers/, with four functions:
#   NAME_get    have the server in the cache; prints what starts it (a binary's path)
#   NAME_start  start it in the background under $RUN/NAME, on loopback, with a pid file $RUN/NAME/pid
#   NAME_stop   stop what NAME_start started
#   NAME_check  succeed when it answers
#   NAME_url    print where it listens
# Sourced, not run.

SERVERS=()
for file in dev.d/servers/*.sh; do
  # shellcheck source=/dev/null
  source "$file"
  SERVERS+=("$(basename "$file" .sh)")
done

known_server() { declare -F "$1_start" > /dev/null || die "no such server: $1 (there are: ${SERVERS[*]})"; }

# server_launch NAME COMMAND...: in the background, detached, with its log and pid in $RUN/NAME; then wait for NAME_check.
server_launch() {
  local name="$1"
  shift
  mkdir -p "$RUN/$name"
  nohup "$@" > "$RUN/$name/log" 2>&1 < /dev/null &
  printf '%s\n' $! > "$RUN/$name/pid"
  wait_for 60 "${name}_check" || {
    tail -n 20 "$RUN/$name/log" >&2
    stop_pid "$RUN/$name/pid"
    die "$name did not come up (log: $RUN/$name/log)"
  }
}

servers_up() {
  local name
  for name in "${@:-${SERVERS[@]}}"; do
    known_server "$name"
    if alive "$RUN/$name/pid" && "${name}_check" > /dev/null 2>&1; then
      say "$name is up already"
    else
      "${name}_start"
    fi
    printf '%s %s\n' "$name" "$("${name}_url")"
  done
}

servers_down() {
  local name
  for name in "${@:-${SERVERS[@]}}"; do
    known_server "$name"
    "${name}_stop"
  done
}

servers_list() {
  local name
  for name in "${SERVERS[@]}"; do
    if alive "$RUN/$name/pid"; then printf '%s up %s\n' "$name" "$("${name}_url")"; else printf '%s down\n' "$name"; fi
  done
}
