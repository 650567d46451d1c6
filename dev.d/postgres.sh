# shellcheck shell=bash
# The stages that need PostgreSQL servers beside the real binary. Sourced, not run.

SERVER_STAGES+=(holdings postgres dependencies)

# What runs when the stage ends, the newest first.
STAGE_END=()
at_stage_end() {
  STAGE_END=("$*" "${STAGE_END[@]}")
  trap 'for one in "${STAGE_END[@]}"; do eval "$one" || true; done' EXIT
}

# stage_postgres_url STAGE: sets PG_URL to a server that ends with the stage, or to what CAIRN_TEST_PG_URL names.
stage_postgres_url() {
  PG_URL="${CAIRN_TEST_PG_URL:-}"
  if [ -n "$PG_URL" ]; then return; fi
  RUN="$CACHE/run/test-$1"
  POSTGRES_PORT="$(free_port)"
  if has_room_in_memory; then POSTGRES_IN_MEMORY=1 POSTGRES_SETTINGS+=(-c max_wal_size=512MB); fi
  at_stage_end postgres_stop
  postgres_start || return 1
  PG_URL="$(postgres_url)"
}

# Tables of tokens and holdings against what contracts on a real node say, on SQLite and on PostgreSQL.
stage_holdings() {
  local anvil artifacts
  anvil="$(anvil_get)" && artifacts="$(contracts)" || return 1
  stage_postgres_url holdings || return 1
  "$BIN_DEV" holdings-test --cairn "$BIN_CAIRN" --anvil "$anvil" --contracts "$artifacts" --postgres "$PG_URL" "$@"
}

# answers_end_of_wait URL TIP DIR: it has derived its chain, or one of them has ended, and there is nothing to wait for.
answers_end_of_wait() {
  rest_caught_up "$1" "$2" || ! alive "$3/sqlite.pid" || ! alive "$3/postgres.pid"
}

# answers_wait TIP DIR URL...: until all of them have derived their chain.
answers_wait() {
  local tip="$1" dir="$2" url
  shift 2
  for url in "$@"; do
    wait_for 180 answers_end_of_wait "$url" "$tip" "$dir" || true
    if ! rest_caught_up "$url" "$tip"; then
      tail -n 20 "$dir"/*.log >&2
      die "$url did not derive its chain within three minutes"
    fi
  done
}

# answers_holes SCHEMA BLOCKS: statements that leave blocks without rows of some workers, as a worker does that can't process them: one of all workers, and so
# many of one worker that an answer doesn't name them all.
answers_holes() {
  local table worker one=$(($2 / 3)) from=$(($2 * 2 / 5)) to=$(($2 * 4 / 5))
  for worker in token evm meta accounts tx_metrics tx_contracts; do
    printf "INSERT INTO %squarantined_blocks (service_name, height) VALUES ('%s_worker', %d);\n" "$1" "$worker" "$one"
  done
  for table in ft_transfers nft_transfers evm_transactions evm_logs smart_contracts address_transactions tx_metrics tx_contracts; do
    printf 'DELETE FROM %s%s WHERE block_height = %d;\n' "$1" "$table" "$one"
  done
  printf "INSERT INTO %squarantined_blocks (service_name, height) WITH RECURSIVE holes (height) AS \
    (SELECT %d UNION ALL SELECT height + 1 FROM holes WHERE height < %d) SELECT 'token_worker', height FROM holes;\n" "$1" "$from" "$to"
  for table in ft_transfers nft_transfers; do
    printf 'DELETE FROM %s%s WHERE block_height BETWEEN %d AND %d;\n' "$1" "$table" "$from" "$to"
  done
  # Above the watermark: no answer names it.
  printf "INSERT INTO %squarantined_blocks (service_name, height) VALUES ('token_worker', %d);\n" "$1" $(($2 + 10))
}

# The same chain on SQLite and on PostgreSQL: the same answers of /v1, byte for byte; and once more over holes. It forks a few times before that, the same on both:
# each block of the last 120 comes when the one before is stored, whoever is slower. What a node says of contracts is asked anew when both stand still, since answers name the
# block that it was asked at.
postgres_answers() {
  local blocks="${CAIRN_ANSWER_BLOCKS:-480}" tip dir name backend url urls=() database databases=() worker
  tip=$((blocks + 120))
  dir="$(mktemp -d "$CACHE/answers.XXXXXX")"
  at_stage_end "rm -rf '$dir'"
  for backend in sqlite postgres; do
    database=()
    if [ "$backend" = postgres ]; then
      for name in raw app; do
        "$(postgres_bin)/psql" -qX -d "$PG_URL" -c "CREATE DATABASE cairn_answers_$$_$name" || return 1
        at_stage_end "'$(postgres_bin)/psql' -qX -d '$PG_URL' -c 'DROP DATABASE cairn_answers_$$_$name WITH (FORCE)'"
      done
      databases=("DB_RAW_URL=${PG_URL%/*}/cairn_answers_$$_raw" "DB_APP_URL=${PG_URL%/*}/cairn_answers_$$_app")
      database=("${databases[@]}")
    fi
    env -u DB_RAW_URL -u DB_APP_URL "${database[@]}" "$BIN_CAIRN" demo --blocks "$blocks" --until "$tip" --block-time-ms 20 --seed 11 \
      --data "$dir/$backend" --rpc-listen 127.0.0.1:0 --listen 127.0.0.1:0 > "$dir/$backend.log" 2>&1 &
    printf '%s\n' $! > "$dir/$backend.pid"
    at_stage_end "stop_pid '$dir/$backend.pid'"
    wait_for 60 rest_url "$dir/$backend.log" || { tail -n 20 "$dir/$backend.log" >&2; die "cairn on $backend does not listen"; }
    url="$(rest_url "$dir/$backend.log")"
    urls+=("$url")
  done
  answers_wait "$tip" "$dir" "${urls[@]}"
  for worker in token_metadata_worker nft_metadata_worker contract_code_worker; do
    env -u DB_RAW_URL -u DB_APP_URL "$BIN_CAIRN" reindex --worker "$worker" --data "$dir/sqlite" || return 1
    env "${databases[@]}" "$BIN_CAIRN" reindex --worker "$worker" --data "$dir/postgres" || return 1
  done
  answers_wait "$tip" "$dir" "${urls[@]}"
  python3 tests/rest/compare.py "${urls[@]}" | tee "$dir/whole" || return 1
  answers_holes "" "$tip" | python3 -c 'import sqlite3, sys
sqlite3.connect(sys.argv[1], timeout=30).executescript("BEGIN IMMEDIATE;" + sys.stdin.read() + "COMMIT;")' "$dir/sqlite/app.sqlite"
  answers_holes app. "$tip" |
    "$(postgres_bin)/psql" -qX1 -v ON_ERROR_STOP=1 -d "${PG_URL%/*}/cairn_answers_$$_app" || return 1
  python3 tests/rest/compare.py --holes --passed "$(totals_of "$dir/whole" | cut -d ' ' -f 1)" "${urls[@]}"
}

# app_server NAME: sets APP_SERVER to the arguments that name a server of the app database alone, which the test itself starts and stops.
app_server() {
  local binary data port command
  binary="$(postgres_get)" || return 1
  RUN="$CACHE/run/test-$1"
  mkdir -p "$RUN/postgres"
  data="$(postgres_data)" port="$(free_port)"
  at_stage_end "rm -rf '$data'"
  postgres_init "$data"
  command="$(printf '%q ' "${POSTGRES_AS[@]}" "$binary" -D "$data" -p "$port" "${POSTGRES_SETTINGS[@]}")"
  APP_SERVER=(--app-server "$command" --app-postgres "postgres://postgres@127.0.0.1:$port/postgres" --away-s "${CAIRN_OUTAGE_S:-60}")
}

# One ingester and three workers, killed at random while the chain forks, and without their app database for a while.
postgres_kills() {
  app_server kills || return 1
  "$BIN_DEV" kill-test --cairn "$BIN_CAIRN" --anvil "$(anvil_get)" --contracts "$(contracts)" --postgres "$PG_URL" "${APP_SERVER[@]}" \
    --kills "${CAIRN_KILLS:-60}" --seed "${CAIRN_KILL_SEED:-1}"
}

# One process that takes a chain in as fast as it goes, with its app database and without.
postgres_outage() {
  app_server outage || return 1
  "$BIN_DEV" outage-test --cairn "$BIN_CAIRN" --postgres "$PG_URL" "${APP_SERVER[@]}" ${KEEP:+--keep "$KEEP"}
}

# Each dependency away for a while, in two ways: both databases, the node, the object storage.
stage_dependencies() {
  local anvil artifacts
  anvil="$(anvil_get)" && artifacts="$(contracts)" || return 1
  stage_postgres_url dependencies || return 1
  RUN="$CACHE/run/test-dependencies"
  S3S_PORT="$(free_port)"
  at_stage_end s3s_stop
  s3s_start || return 1
  "$BIN_DEV" dependency-test --cairn "$BIN_CAIRN" --anvil "$anvil" --contracts "$artifacts" --postgres "$PG_URL" --s3 "$(s3s_url)" \
    --away-s "${CAIRN_OUTAGE_S:-30}" "$@"
}

# What PostgreSQL shows beside the suites. Each part ends with a line of its own, the stage with their sum.
stage_postgres() {
  local part log status passed=0 failed=0 more_passed more_failed
  need python3 "Python $PYTHON_MIN or newer, from https://python.org" python3
  stage_postgres_url postgres || return 1
  log="$(mktemp "$CACHE/postgres.XXXXXX")"
  at_stage_end "rm -f '$log'"
  for part in answers kills outage; do
    printf -- '--- %s\n' "$part"
    status=0
    (STAGE_END=(); set -euo pipefail; "postgres_$part") 2>&1 | tee "$log" || status="${PIPESTATUS[0]}"
    read -r more_passed more_failed < <(totals_of "$log")
    if [ "$more_failed" = 0 ] && { [ "$status" != 0 ] || [ "$more_passed" = 0 ]; }; then more_failed=1; fi
    passed=$((passed + more_passed)) failed=$((failed + more_failed))
  done
  printf '%d passed, %d failed\n' "$passed" "$failed"
  [ "$failed" = 0 ]
}
