# shellcheck shell=bash
# The stage of Flow: the real binary from an access node that is made up. Sourced, not run.

SERVER_STAGES+=(flow)

# Every table against the ledger of the chain, and against the node's own answers, while it forks and a process is killed, on SQLite and on PostgreSQL; the
# reliability document's §8.
stage_flow() {
  stage_postgres_url flow || return 1
  "$BIN_DEV" flow-test --cairn "$BIN_CAIRN" --postgres "$PG_URL" "$@"
}
