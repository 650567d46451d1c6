# shellcheck shell=bash
# flow-emulator, a development node of Flow: Go module github.com/onflow/flow-emulator, pinned in tests/flow-emulator/go.sum.

FLOW_EMULATOR_PORT="${CAIRN_FLOW_EMULATOR_PORT:-13569}"
FLOW_EMULATOR_ADMIN_PORT="${CAIRN_FLOW_EMULATOR_ADMIN_PORT:-18081}"

flow_emulator_get() {
  local binary go
  binary="$CACHE/bin/flow-emulator-$(hash_of tests/flow-emulator/go.mod tests/flow-emulator/go.sum)"
  if [ ! -x "$binary" ]; then
    go="$(go_tool)" || return 1
    need cc "a C compiler" gcc libc6-dev
    say "building flow-emulator (some minutes, once)"
    # Portable: the binary stays in a cache that may come to another machine.
    (cd tests/flow-emulator && CGO_ENABLED=1 CGO_CFLAGS="-O2 -D__BLST_PORTABLE__" GOFLAGS=-mod=readonly "$go" build -trimpath -ldflags '-s -w' \
      -o "$binary.new" github.com/onflow/flow-emulator/cmd/emulator >&2) \
      || die "flow-emulator does not build; it needs Go $GO_MIN or newer, a C compiler and the Go module proxy"
    mv "$binary.new" "$binary"
  fi
  printf '%s\n' "$binary"
}

# A block every second, and one for each transaction; POST :ADMIN/emulator/rollback with height=N takes blocks back.
flow_emulator_start() {
  local binary
  binary="$(flow_emulator_get)" || return 1
  server_launch flow_emulator "$binary" start --host 127.0.0.1 --port "$FLOW_EMULATOR_PORT" --rest-port "$(free_port)" \
    --admin-port "$FLOW_EMULATOR_ADMIN_PORT" --debugger-port "$(free_port)" --block-time 1s --contracts --transaction-fees
}

flow_emulator_stop() { stop_pid "$RUN/flow_emulator/pid"; }
flow_emulator_check() { (exec 3<> "/dev/tcp/127.0.0.1/$FLOW_EMULATOR_PORT") 2> /dev/null; }
flow_emulator_url() { printf 'http://127.0.0.1:%s\n' "$FLOW_EMULATOR_PORT"; }
