# shellcheck shell=bash
# Messages, places and small helpers of ./dev. Sourced, not run.

CACHE="${CAIRN_CACHE:-$HOME/.cache/cairn}"
SHARED="${CAIRN_SHARED:-$ROOT/../shared}"
export CAIRN_CACHE="$CACHE" CAIRN_SHARED="$SHARED"
RUN="$CACHE/run"        # pid files, logs and data of servers started by `up`
mkdir -p "$CACHE/bin" "$RUN"

# Where the lock file must fit the manifests (CI), a misfit is an error, not something to mend on the way.
locked_cargo() {
  local subcommand="$1"
  shift
  if [ "${CI:-}" = true ]; then cargo "$subcommand" --locked "$@"; else cargo "$subcommand" "$@"; fi
}

say() { printf '%s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

on_debian_as_root() { [ -f /etc/debian_version ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; }

APT_UPDATED=
# apt_install PACKAGE...: Debian packages by name.
apt_install() {
  say "installing Debian packages: $*"
  if [ -z "$APT_UPDATED" ]; then
    apt-get update -qq > /dev/null || die "apt-get update failed"
    APT_UPDATED=1
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" > /dev/null \
    || die "apt-get install $* failed"
}

# need COMMAND "how to get it" PACKAGE...: have the command, install its Debian packages, or say what is missing.
need() {
  local command="$1" how="$2"
  shift 2
  command -v "$command" > /dev/null && return
  if [ $# -gt 0 ] && on_debian_as_root; then
    apt_install "$@"
    command -v "$command" > /dev/null && return
  fi
  die "missing: $command. How to get it: $how"
}

need_rust() {
  need cc "a C compiler, for SQLite, zstd and libsecp256k1 (Debian: gcc libc6-dev; macOS: xcode-select --install)" gcc libc6-dev
  need cargo "Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) or newer, from https://rustup.rs"
}

need_suite() {
  [ -f "$SHARED/conformance/execution-apis/chain.rlp" ] || die \
    "missing: the public JSON-RPC suite in $SHARED/conformance/execution-apis (set CAIRN_SHARED to the folder that holds conformance/). How to get it: the folder 'tests' of github.com/ethereum/execution-apis, and receipts.json.gz: [{number, hash, receipts: [EIP-2718 hex]}], gzipped"
}

# hash_of FILE...: a short name for their contents, for folders in the cache.
hash_of() { cat "$@" | { sha256sum 2> /dev/null || shasum -a 256; } | cut -c1-16; }

# version_at_least HAVE WANT
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

free_port() {
  python3 - <<'PY'
import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])
PY
}

# json_rpc URL METHOD [PARAMS]: the raw answer; fails when nobody answers.
json_rpc() {
  curl -fsS --max-time 5 -H 'content-type: application/json' \
    -d "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"$2\",\"params\":${3:-[]}}" "$1"
}

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
  local until=$(($(date +%s) + $1))
  shift
  until "$@" > /dev/null 2>&1; do
    [ "$(date +%s)" -lt "$until" ] || return 1
    sleep 0.1
  done
}

# alive PIDFILE
alive() { [ -f "$1" ] && kill -0 "$(cat "$1")" 2> /dev/null; }

# stop_pid PIDFILE: ask first, insist after ten seconds.
stop_pid() {
  if alive "$1"; then
    local pid
    pid="$(cat "$1")"
    kill -TERM "$pid" 2> /dev/null || true
    for _ in $(seq 100); do
      kill -0 "$pid" 2> /dev/null || break
      sleep 0.1
    done
    kill -KILL "$pid" 2> /dev/null || true
  fi
  rm -f "$1"
}
