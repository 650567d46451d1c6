# shellcheck shell=bash
# The stages of `./dev test`. Each prints its cases and ends with `N passed, M failed`; cargo's own lines are summed up.
# Sourced, not run.

EMBEDDED_STAGES=(checks cargo conformance odd_nodes load sim)
SERVER_STAGES=(anvil geth clients objects)

# What all stages share: one profile, and one set of features. Cargo joins the features of the packages and targets that a command
# names, so commands that name others would compile most of it once more.
BIN_CAIRN="${CARGO_TARGET_DIR:-target}/debug/cairn"
BIN_DEV="${CARGO_TARGET_DIR:-target}/debug/cairn-dev"
BIN_SIM="${CARGO_TARGET_DIR:-target}/debug/cairn-sim"
# What cargo said of the last build of the tests: where each binary is.
TEST_MESSAGES="$CACHE/test-logs/build.json"

# build_all [TEST]: all binaries, and all tests; with TEST, of the tests only the small one of that name, for the features that tests have.
build_all() {
  local tests=(--tests)
  [ $# = 0 ] || tests=(--test "$1")
  mkdir -p "$(dirname "$TEST_MESSAGES")"
  locked_cargo build --workspace --bins "${tests[@]}" --message-format=json-render-diagnostics > "$TEST_MESSAGES" \
    || die "the build failed"
}

# run_test_binaries ARGUMENT...: arguments of dev.d/run_tests.py.
run_test_binaries() {
  need python3 "Python $PYTHON_MIN or newer, from https://python.org" python3
  python3 dev.d/run_tests.py --messages "$TEST_MESSAGES" "$@"
}

stage_checks() { run_lint; }

# All tests, some binaries at a time. With a PostgreSQL server; `--embedded` goes without.
stage_cargo() {
  if [ -z "${EMBEDDED:-}" ]; then
    stage_postgres_url cargo || return 1
    export CAIRN_TEST_PG_URL="$PG_URL"
  fi
  run_test_binaries --times "$CACHE/test-logs/times.json" ${CAIRN_TEST_JOBS:+--jobs "$CAIRN_TEST_JOBS"} -- --quiet || return 1
  # Where there is none, each crate would still be compiled for it.
  if has_doc_tests; then locked_cargo test --workspace --doc -- --quiet; fi
}

# Whether the documentation of any crate has code that rustdoc would run: a fence without a word, or with one of Rust's.
has_doc_tests() {
  [ -n "$(find crates/*/src -name '*.rs' -exec awk '
    /^ *\/\/[\/!] *```/ {
      word = $0; sub(/^ *\/\/[\/!] *```/, "", word)
      if (!inside && word ~ /^ *(rust|should_panic|no_run|edition|,|$)/) found = 1
      inside = !inside
      next
    }
    !/^ *\/\/[\/!]/ { inside = 0 }
    END { exit !found }' {} \; -print)" ]
}

# Imports the public suite's chain with the real binary, serves it, and asks all the suite's requests over HTTP.
stage_conformance() {
  need_suite
  local suite="$SHARED/conformance/execution-apis"
  "$BIN_DEV" conformance-test --cairn "$BIN_CAIRN" --suite "$suite" "$@"
}

# Plays odd but honest nodes and real blocks of awkward chains to the real binary.
stage_odd_nodes() {
  "$BIN_DEV" odd-nodes-test --cairn "$BIN_CAIRN" --shared "$SHARED" "$@"
}

# Greedy, slow, silent and too many clients at the real binary.
stage_load() {
  "$BIN_DEV" load-test --cairn "$BIN_CAIRN" "$@"
}

stage_sim() {
  if [ $# = 0 ]; then set -- --seeds "${CAIRN_SIM_SEEDS:-500}"; fi
  exec "${YIELDING[@]}" "$BIN_SIM" "$@"
}

stage_anvil() {
  local anvil artifacts
  anvil="$(anvil_get)" && artifacts="$(contracts)" || return 1
  "$BIN_DEV" anvil-test --cairn "$BIN_CAIRN" --anvil "$anvil" --contracts "$artifacts" "$@"
}

stage_geth() {
  need_suite
  local geth
  geth="$(geth_get)" || return 1
  "$BIN_DEV" geth-test --cairn "$BIN_CAIRN" --geth "$geth" --suite "$SHARED/conformance/execution-apis" "$@"
}

stage_clients() {
  local anvil artifacts deps python
  anvil="$(anvil_get)" && artifacts="$(contracts)" && deps="$(node_deps)" && python="$(python_deps)" || return 1
  "$BIN_DEV" client-test --cairn "$BIN_CAIRN" --anvil "$anvil" --contracts "$artifacts" \
    --node-deps "$deps" --python "$python" --scripts tests/clients "$@"
}

# The suite of payload stores against a real S3 server, on a port and in a folder of its own.
stage_objects() {
  RUN="$CACHE/run/test-objects"
  S3S_PORT="$(free_port)"
  s3s_start
  trap s3s_stop EXIT
  CAIRN_TEST_S3_URL="$(s3s_url)" run_test_binaries --only 'backends tests/backends/main.rs' -- objects_suite::a_real_s3_server
}

# totals_of LOG: "PASSED FAILED" of a stage, from cargo's `test result:` lines or its last `N passed, M failed`.
totals_of() {
  awk '
    /^test result: / { for (i = 1; i <= NF; i++) { if ($i == "passed;") p += $(i-1); if ($i == "failed;") f += $(i-1) } cargo = 1 }
    /^[0-9]+ passed, [0-9]+ failed$/ { lp = $1; lf = $3; plain = 1 }
    END { if (cargo) print p + 0, f + 0; else if (plain) print lp, lf; else print 0, 0 }
  ' "$1"
}

EMBEDDED=
TOTAL_PASSED=0 TOTAL_FAILED=0 SUMMARY=()

# missing_shared STAGE: the folders of the shared data that the stage reads and that are not there.
missing_shared() {
  local folders=() folder
  case "$1" in
    conformance | geth) folders=(conformance/execution-apis) ;;
    odd_nodes) folders=(cases/odd-nodes fixtures/evm-real) ;;
  esac
  for folder in "${folders[@]}"; do [ -d "$SHARED/$folder" ] || printf '%s ' "$SHARED/$folder"; done
}

# run_stage NAME. A stage whose shared data is missing is named and passed over; in CI it fails.
run_stage() {
  local name="$1" log="$CACHE/test-logs/$1.log" begun status=0 missing
  missing="$(missing_shared "$name")"
  if [ -n "$missing" ] && [ "${CI:-}" != true ]; then
    SUMMARY+=("$(printf '%-12s not run: missing %s(set CAIRN_SHARED)' "$name" "$missing")")
    return
  fi
  begun="$(date +%s)"
  printf '\n=== %s\n' "$name"
  # In a subshell with its own error handling, so that a `die` ends the stage alone.
  (set -euo pipefail; "stage_$name") 2>&1 | tee "$log" || status="${PIPESTATUS[0]}"
  sum_up "$name" "$status" "$(($(date +%s) - begun))"
}

# sum_up NAME STATUS SECONDS: a stage that fails without a failed case, or runs no case, counts as one failed.
sum_up() {
  local name="$1" status="$2" seconds="$3" passed failed
  read -r passed failed < <(totals_of "$CACHE/test-logs/$name.log")
  if [ "$failed" = 0 ] && { [ "$status" != 0 ] || [ "$passed" = 0 ]; }; then failed=1; fi
  TOTAL_PASSED=$((TOTAL_PASSED + passed))
  TOTAL_FAILED=$((TOTAL_FAILED + failed))
  SUMMARY+=("$(printf '%-12s %7d passed %4d failed %5d s' "$name" "$passed" "$failed" "$seconds")")
}

# The stage that needs processors and nothing else: its time is its own, so it may be as slow as it likes. Beside stages with servers it takes
# what they leave while they wait.
BESIDE_STAGE=sim
BESIDE_PID=
# What a command begins with that yields to every other.
YIELDING=()

begin_beside() {
  BESIDE_BEGUN="$(date +%s)"
  (
    YIELDING=(nice -n 19)
    if [ -w /proc/self/autogroup ] && command -v setsid > /dev/null; then
      # Where the kernel shares time out by session, niceness counts within one alone: so it has one, which yields as a whole.
      YIELDING=(setsid nice -n 19 sh -c 'echo 19 > /proc/self/autogroup; exec "$@"' sh)
    fi
    "stage_$BESIDE_STAGE"
  ) > "$CACHE/test-logs/$BESIDE_STAGE.log" 2>&1 &
  BESIDE_PID=$!
  # It hears of no interrupt by itself.
  trap 'kill "$BESIDE_PID" 2> /dev/null || true' EXIT
}

end_beside() {
  local log="$CACHE/test-logs/$BESIDE_STAGE.log" status=0
  printf '\n=== %s, which ran beside those with servers\n' "$BESIDE_STAGE"
  # Nobody is left to yield to, but for what others run on this machine.
  { echo 0 > "/proc/$BESIDE_PID/autogroup"; } 2> /dev/null || true
  wait "$BESIDE_PID" || status=$?
  trap - EXIT
  cat "$log"
  sum_up "$BESIDE_STAGE" "$status" "$(($(date -r "$log" +%s) - BESIDE_BEGUN))"
}

# run_build STAGE...: what these stages run, each thing once.
run_build() {
  local begun tests=(pressure)
  begun="$(date +%s)"
  case " $* " in *" cargo "* | *" objects "*) tests=() ;; esac
  printf '\n=== build\n'
  build_all "${tests[@]}"
  SUMMARY+=("$(printf '%-12s %29s %5d s' build '' "$(($(date +%s) - begun))")")
}

run_tests() {
  local stages=() stage
  case "${1:-}" in
    --list) printf '%s\n' "${EMBEDDED_STAGES[@]}" "${SERVER_STAGES[@]}"; return ;;
    --embedded) EMBEDDED=1 stages=("${EMBEDDED_STAGES[@]}") ;;
    '') stages=("${EMBEDDED_STAGES[@]}" "${SERVER_STAGES[@]}") ;;
    *) stages=("$@") ;;
  esac
  for stage in "${stages[@]}"; do
    declare -F "stage_$stage" > /dev/null || die "no stage $stage; there are: ${EMBEDDED_STAGES[*]} ${SERVER_STAGES[*]}"
  done
  need_rust
  mkdir -p "$CACHE/test-logs"
  run_build "${stages[@]}"
  local beside=
  for stage in "${stages[@]}"; do
    if is_one_of "$stage" "${SERVER_STAGES[@]}"; then beside="$BESIDE_STAGE"; fi
  done
  if ! is_one_of "$BESIDE_STAGE" "${stages[@]}"; then beside=; fi
  for stage in "${stages[@]}"; do
    if [ "$stage" = "$beside" ]; then continue; fi
    if [ -n "$beside" ] && [ -z "$BESIDE_PID" ] && is_one_of "$stage" "${SERVER_STAGES[@]}"; then begin_beside; fi
    run_stage "$stage"
  done
  if [ -n "$BESIDE_PID" ]; then end_beside; fi
  printf '\n'
  printf '%s\n' "${SUMMARY[@]}"
  printf '%d passed, %d failed\n' "$TOTAL_PASSED" "$TOTAL_FAILED"
  [ "$TOTAL_FAILED" = 0 ]
}

# is_one_of NAME LIST...
is_one_of() {
  local name="$1" one
  shift
  for one in "$@"; do if [ "$one" = "$name" ]; then return; fi; done
  return 1
}

# run_bench [NAME ...]: in release. One that compares with another server is told where the programs are; one that needs PostgreSQL uses the
# server of CAIRN_TEST_PG_URL, or one of its own with the memory that a server of an archive would be given.
run_bench() {
  local more=() anvil artifacts
  case " $* " in
    *" --no-peer "* | *" --help "*) ;;
    " getlogs "* | " node-to-postgres "*)
      locked_cargo build --release -q -p cairn || die "the build failed"
      anvil="$(anvil_get)" && artifacts="$(contracts)" || return 1
      more=(--anvil "$anvil" --contracts "$artifacts" --cairn "${CARGO_TARGET_DIR:-target}/release/cairn")
      ;;
    " idle "*)
      locked_cargo build --release -q -p cairn || die "the build failed"
      anvil="$(anvil_get)" || return 1
      more=(--anvil "$anvil" --cairn "${CARGO_TARGET_DIR:-target}/release/cairn")
      ;;
    " flow "*)
      locked_cargo build --release -q -p cairn || die "the build failed"
      more=(--cairn "${CARGO_TARGET_DIR:-target}/release/cairn")
      ;;
  esac
  case "${1:-}" in
    postgres | rollback | node-to-postgres | flow | idle)
      if [ -z "${CAIRN_TEST_PG_URL:-}" ]; then
        RUN="$CACHE/run/bench" POSTGRES_PORT="$(free_port)"
        postgres_for_benchmarks
        trap postgres_stop EXIT
        postgres_start || return 1
        CAIRN_TEST_PG_URL="$(postgres_url)"
        export CAIRN_TEST_PG_URL
      fi
      ;;
  esac
  locked_cargo run --release -q -p cairn-dev -- bench "$@" "${more[@]}"
}
