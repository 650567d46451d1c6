# shellcheck shell=bash
# The stages of Flow: the real binary from an access node that is made up, and from a flow-emulator. Sourced, not run.

SERVER_STAGES+=(flow flow_emulator)

# Every table against the ledger of the chain, and against the node's own answers, while it forks and a process is killed, on SQLite and on PostgreSQL; the
# reliability document's §8.
stage_flow() {
  stage_postgres_url flow || return 1
  "$BIN_DEV" flow-test --cairn "$BIN_CAIRN" --postgres "$PG_URL" "$@"
}

# A real node: every table against its account calls, scripts, transactions and events, while it takes blocks back.
stage_flow_emulator() {
  local emulator
  emulator="$(flow_emulator_get)" || return 1
  stage_postgres_url flow_emulator || return 1
  "$BIN_DEV" flow-emulator-test --cairn "$BIN_CAIRN" --emulator "$emulator" --postgres "$PG_URL" "$@"
}
