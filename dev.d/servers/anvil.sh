# shellcheck shell=bash
# anvil, a development EVM node that signs, mines on demand and reorganises on demand: npm @foundry-rs/anvil.

ANVIL_PORT="${CAIRN_ANVIL_PORT:-18545}"

anvil_get() {
  local deps binary
  deps="$(node_deps)" || return 1
  binary="$(find "$deps/node_modules/@foundry-rs" -path '*/bin/anvil' -type f | head -n 1)"
  [ -n "$binary" ] || die "npm package @foundry-rs/anvil has no binary for $(uname -sm). How to get one: https://getfoundry.sh"
  printf '%s\n' "$binary"
}

anvil_start() {
  need curl "https://curl.se" curl
  local binary
  binary="$(anvil_get)" || return 1
  server_launch anvil "$binary" -p "$ANVIL_PORT" --host 127.0.0.1 --block-time 2 --slots-in-an-epoch 40 -q
}

anvil_stop() { stop_pid "$RUN/anvil/pid"; }
anvil_check() { json_rpc "$(anvil_url)" eth_chainId; }
anvil_url() { printf 'http://127.0.0.1:%s\n' "$ANVIL_PORT"; }
