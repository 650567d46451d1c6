# shellcheck shell=bash
# geth with the public suite's chain imported: Go module github.com/ethereum/go-ethereum, pinned in tests/geth/go.sum.

GETH_PORT="${CAIRN_GETH_PORT:-18546}"

geth_get() {
  local binary go
  binary="$CACHE/bin/geth-$(hash_of tests/geth/go.mod tests/geth/go.sum)"
  if [ ! -x "$binary" ]; then
    go="$(go_tool)" || return 1
    need cc "a C compiler" gcc libc6-dev
    say "building geth (some minutes, once)"
    (cd tests/geth && GOFLAGS=-mod=readonly "$go" build -trimpath -ldflags '-s -w' -o "$binary.new" github.com/ethereum/go-ethereum/cmd/geth >&2) \
      || die "geth does not build; it needs Go $GO_MIN or newer and the Go module proxy"
    mv "$binary.new" "$binary"
  fi
  printf '%s\n' "$binary"
}

geth_start() {
  need curl "https://curl.se" curl
  need_suite
  local binary data="$RUN/geth/data" suite="$SHARED/conformance/execution-apis"
  binary="$(geth_get)" || return 1
  rm -rf "$data" && mkdir -p "$data"
  {
    "$binary" --datadir "$data" --cache 64 init "$suite/genesis.json" &&
      "$binary" --datadir "$data" --cache 64 import "$suite/chain.rlp"
  } > "$RUN/geth/import.log" 2>&1 || die "geth does not take the suite's chain (log: $RUN/geth/import.log)"
  server_launch geth "$binary" --datadir "$data" --cache 64 --nodiscover --maxpeers 0 --port 0 --ipcdisable --authrpc.port 0 \
    --http --http.addr 127.0.0.1 --http.port "$GETH_PORT" --http.api eth,net,web3,debug --verbosity 2
}

geth_stop() { stop_pid "$RUN/geth/pid"; }
geth_check() { json_rpc "$(geth_url)" eth_chainId; }
geth_url() { printf 'http://127.0.0.1:%s\n' "$GETH_PORT"; }
