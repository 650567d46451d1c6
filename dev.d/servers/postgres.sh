# shellcheck shell=bash
# PostgreSQL 15 or newer for tests: Debian package postgresql. It refuses to run as root; there it runs as the user postgres.

POSTGRES_PORT="${CAIRN_POSTGRES_PORT:-}"

# The folder with initdb and postgres: CAIRN_POSTGRES_BIN, or that of the newest version on this machine; nothing where there is none.
postgres_bin() {
  local dir
  if [ -n "${CAIRN_POSTGRES_BIN:-}" ]; then
    printf '%s\n' "$CAIRN_POSTGRES_BIN"
    return
  fi
  for dir in $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV) "$(pg_config --bindir 2> /dev/null || true)"; do
    if [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ]; then
      printf '%s\n' "$dir"
      return
    fi
  done
  return 0
}

postgres_get() {
  local bin program
  bin="$(postgres_bin)"
  for program in initdb postgres pg_isready psql; do
    [ -z "${CAIRN_POSTGRES_BIN:-}" ] || [ -x "$bin/$program" ] || die "CAIRN_POSTGRES_BIN=$bin has no program $program"
  done
  if [ -z "$bin" ] && on_debian_as_root; then
    apt_install postgresql >&2
    bin="$(postgres_bin)"
  fi
  [ -n "$bin" ] || die "missing: PostgreSQL's server. How to get it: Debian package postgresql, or https://www.postgresql.org/download"
  printf '%s\n' "$bin/postgres"
}

# What makes a command run as a user that the server accepts: root is none.
POSTGRES_AS=()
if [ "$(id -u)" = 0 ]; then POSTGRES_AS=(setpriv --reuid=postgres --regid=postgres --init-groups --); fi

# Set for the servers of stages: their data is in memory where there is room, since they make and drop thousands of small databases.
POSTGRES_IN_MEMORY=
has_room_in_memory() { [ -d /dev/shm ] && [ "$(df -Pm /dev/shm | awk 'NR == 2 { print $4 }')" -ge 4096 ]; }

# Where its data is: under $RUN, or, where the user postgres can't reach that, in a folder of its own beside it.
postgres_data() {
  local name
  name="cairn-postgres-$(printf '%s' "$RUN" | { sha256sum 2> /dev/null || shasum -a 256; } | cut -c1-16)"
  if [ -n "$POSTGRES_IN_MEMORY" ]; then
    printf '/dev/shm/%s\n' "$name"
  elif [ "$(id -u)" != 0 ] || "${POSTGRES_AS[@]}" test -x "$RUN" 2> /dev/null; then
    printf '%s\n' "$RUN/postgres/data"
  else
    printf '/var/tmp/%s\n' "$name"
  fi
}

# postgres_init DATA: an empty cluster there. DATA is made anew.
postgres_init() {
  local data="$1"
  rm -rf "$data" && mkdir -p "$data" && chmod 700 "$data"
  if [ "$(id -u)" = 0 ]; then chown postgres "$data"; fi
  (cd / && "${POSTGRES_AS[@]}" "$(postgres_bin)/initdb" -D "$data" -U postgres -E UTF8 --locale=C --auth=trust --no-sync) \
    > "$RUN/postgres/initdb.log" 2>&1 || die "initdb failed (log: $RUN/postgres/initdb.log)"
}

# Many databases of tests beside each other; what a crash of the machine loses is made anew.
POSTGRES_SETTINGS=(-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=300 -c shared_buffers=128MB
  -c fsync=off -c full_page_writes=off -c synchronous_commit=off -c max_wal_size=2GB -c autovacuum_naptime=10s
  -c max_locks_per_transaction=256)

# Settings of the next server as docs/reference/schema.md recommends them: a quarter of the machine's memory, and seldom a checkpoint.
postgres_for_benchmarks() {
  local memory_mib
  memory_mib="$({ awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo || sysctl -n hw.memsize | awk '{ print int($1 / 1048576) }'; } 2> /dev/null)"
  POSTGRES_SETTINGS+=(-c "shared_buffers=$((${memory_mib:-2048} / 4))MB" -c max_wal_size=8GB -c checkpoint_timeout=30min)
}

postgres_start() {
  local binary data port
  binary="$(postgres_get)" || return 1
  mkdir -p "$RUN/postgres"
  data="$(postgres_data)"
  port="${POSTGRES_PORT:-$(free_port)}"
  # A server of an earlier start whose pid file is gone still owns its data: leave it alone, and say so.
  if [ -f "$data/postmaster.pid" ] && kill -0 "$(head -n 1 "$data/postmaster.pid")" 2> /dev/null; then
    head -n 1 "$data/postmaster.pid" > "$RUN/postgres/pid"
    sed -n 4p "$data/postmaster.pid" > "$RUN/postgres/port"
    postgres_check && return
    die "a PostgreSQL server holds $data and does not answer"
  fi
  postgres_init "$data"
  printf '%s\n' "$port" > "$RUN/postgres/port"
  server_launch postgres "${POSTGRES_AS[@]}" "$binary" -D "$data" -p "$port" "${POSTGRES_SETTINGS[@]}"
}

# INT: don't wait for clients. TERM would.
postgres_stop() {
  if alive "$RUN/postgres/pid"; then kill -INT "$(cat "$RUN/postgres/pid")" 2> /dev/null || true; fi
  stop_pid "$RUN/postgres/pid"
  rm -rf "$(postgres_data)"
}

postgres_check() {
  [ -s "$RUN/postgres/port" ] || return 1
  "$(postgres_bin)/pg_isready" -q -h 127.0.0.1 -p "$(cat "$RUN/postgres/port")" -U postgres
}

postgres_url() { printf 'postgres://postgres@127.0.0.1:%s/postgres\n' "$(cat "$RUN/postgres/port")"; }
