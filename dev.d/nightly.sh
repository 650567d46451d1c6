# shellcheck shell=bash
# What takes hours: many seeds, many kills, every benchmark, and mutation tests. Sourced, not run.

MUTANTS_VERSION=27.1.0
# What decides and does no I/O: the crate's own tests have to catch each mutant there.
MUTANTS_FILES=(
  crates/store/src/check.rs
  crates/store/src/derived/fork.rs crates/store/src/derived/lease.rs
  crates/store/src/derived/rebuild.rs crates/store/src/derived/rules.rs
)
# A night takes one part of so many, by the day of the year; each mutant compiles its crate.
MUTANTS_PARTS=8
# Benchmarks that compare with a limit or a peer, and fail over it.
NIGHTLY_BENCHES=(ingest getlogs postgres rollback flow idle)

mutants_tool() {
  local dir="$CACHE/cargo-mutants-$MUTANTS_VERSION"
  if [ ! -x "$dir/bin/cargo-mutants" ]; then
    say "building cargo-mutants $MUTANTS_VERSION (some minutes, once)"
    cargo install -q cargo-mutants --version "$MUTANTS_VERSION" --locked --root "$dir" >&2 || die "cargo install cargo-mutants failed"
  fi
  printf '%s\n' "$dir/bin/cargo-mutants"
}

# run_mutants [ARGS...]: today's part of the files above, or what ARGS say (cargo mutants --help). It lists what the tests miss, and fails then.
run_mutants() {
  local tool file
  tool="$(mutants_tool)" || return 1
  if [ $# = 0 ]; then
    set -- --shard "$((10#$(date +%j) % MUTANTS_PARTS))/$MUTANTS_PARTS"
    for file in "${MUTANTS_FILES[@]}"; do set -- "$@" --file "$file"; done
  fi
  "$tool" mutants --output "$CACHE/mutants" --minimum-test-timeout 120 "$@"
}

# part NAME COMMAND...: runs it to its end whatever happens, and counts.
part() {
  local name="$1" begun status=0
  shift
  begun="$(date +%s)"
  printf '\n##### %s\n' "$name"
  ("$@") || status=$?
  NIGHTLY+=("$(printf '%-12s %-6s %6d s' "$name" "$([ "$status" = 0 ] && echo ok || echo FAILED)" "$(($(date +%s) - begun))")")
  if [ "$status" = 0 ]; then NIGHTLY_PASSED=$((NIGHTLY_PASSED + 1)); else NIGHTLY_FAILED=$((NIGHTLY_FAILED + 1)); fi
}

# run_nightly [PART...]: all parts (test, bench, mutants), or those named.
run_nightly() {
  local bench
  NIGHTLY=() NIGHTLY_PASSED=0 NIGHTLY_FAILED=0
  export CAIRN_SIM_SEEDS="${CAIRN_SIM_SEEDS:-20000}" CAIRN_KILLS="${CAIRN_KILLS:-1000}" CAIRN_OUTAGE_S="${CAIRN_OUTAGE_S:-120}"
  export CAIRN_CORRECTING_SEEDS="${CAIRN_CORRECTING_SEEDS:-5000}"
  # The two largest models of the derived protocol.
  export CAIRN_MODEL_WHOLE=1
  export CAIRN_ANSWER_BLOCKS="${CAIRN_ANSWER_BLOCKS:-2000}" CAIRN_REST_EXAMPLES="${CAIRN_REST_EXAMPLES:-500}"
  if [ $# = 0 ]; then set -- test bench mutants; fi
  while [ $# -gt 0 ]; do
    case "$1" in
      test)
        part test run_tests
        part "load, small" stage_load --small
        ;;
      bench) for bench in "${NIGHTLY_BENCHES[@]}"; do part "bench $bench" run_bench "$bench"; done ;;
      mutants) part mutants run_mutants ;;
      *) die "no part $1; there are: test bench mutants" ;;
    esac
    shift
  done
  printf '\n'
  printf '%s\n' "${NIGHTLY[@]}"
  printf '%d passed, %d failed\n' "$NIGHTLY_PASSED" "$NIGHTLY_FAILED"
  [ "$NIGHTLY_FAILED" = 0 ]
}
