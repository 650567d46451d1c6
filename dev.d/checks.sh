# shellcheck shell=bash
# Checks of the code itself. Each prints `ok NAME` or `FAIL NAME`, and counts. Sourced, not run.

DENY_VERSION=0.20.2
CHECKS_PASSED=0 CHECKS_FAILED=0

# check NAME COMMAND...
check() {
  local name="$1"
  shift
  if "$@"; then
    printf 'ok %s\n' "$name"
    CHECKS_PASSED=$((CHECKS_PASSED + 1))
  else
    printf 'FAIL %s\n' "$name"
    CHECKS_FAILED=$((CHECKS_FAILED + 1))
  fi
}

checks_end() {
  printf '%d passed, %d failed\n' "$CHECKS_PASSED" "$CHECKS_FAILED"
  [ "$CHECKS_FAILED" = 0 ]
}

need_component() { cargo "$1" --version > /dev/null 2>&1 || die "missing: cargo $1. How to get it: rustup component add $2"; }

# Only the binary, the tools of ./dev and tests know a database; everything else knows the store traits.
crate_graph() {
  local package packages tree ok=0
  packages="$(locked_cargo tree --workspace --depth 0 --prefix none --format '{p}' | awk 'NF {print $1}' | sort -u)"
  [ -n "$packages" ] || return 1
  for package in $packages; do
    case "$package" in cairn | cairn-dev | cairn-backends) continue ;; esac
    tree="$(locked_cargo tree -p "$package" --edges normal,build --all-features --prefix none --format '{p}')" || return 1
    if grep -q '^cairn-backends ' <<< "$tree"; then
      say "$package depends on cairn-backends; only cairn, cairn-dev and tests may"
      ok=1
    fi
  done
  return "$ok"
}

# What alloy can bring along and cairn doesn't call stays out of the binary: KZG proofs, and a second libsecp256k1.
lean_binary() {
  local tree ok=0
  tree="$(locked_cargo tree -p cairn --edges normal,build --prefix none --format '{p}' | sort -u)"
  [ -n "$tree" ] || return 1
  if grep -E '^(c-kzg|blst|k256) ' <<< "$tree"; then
    say "the binary holds libraries that it doesn't call"
    ok=1
  fi
  if [ "$(grep -c '^secp256k1-sys ' <<< "$tree")" != 1 ]; then
    say "the binary has to hold one secp256k1-sys"
    ok=1
  fi
  return "$ok"
}

deny_tool() {
  local dir="$CACHE/cargo-deny-$DENY_VERSION"
  if [ ! -x "$dir/bin/cargo-deny" ]; then
    say "building cargo-deny $DENY_VERSION (some minutes, once)"
    cargo install -q cargo-deny --version "$DENY_VERSION" --locked --root "$dir" >&2 || die "cargo install cargo-deny failed"
  fi
  printf '%s\n' "$dir/bin/cargo-deny"
}

# Advisories are left to `cargo deny check advisories`: their database is not in a package registry.
dependencies() {
  local tool
  tool="$(deny_tool)" || return 1
  "$tool" --log-level error --all-features check bans licenses sources
}

run_lint() {
  need_component fmt rustfmt
  need_component clippy clippy
  check "cargo fmt" cargo fmt --all --check
  need python3 "Python $PYTHON_MIN or newer, from https://python.org" python3
  check "documents and commit subjects: sentences, cells, lengths, links" python3 dev.d/prose.py
  check "clippy, no warnings" locked_cargo clippy -q --workspace --all-targets -- -D warnings
  # All else is compiled with what tests need besides.
  check "cairn with its own features alone" locked_cargo check -q -p cairn
  check "crate graph: only cairn, cairn-dev and tests name a backend" crate_graph
  check "binary: one libsecp256k1, no KZG proofs" lean_binary
  check "dependencies: licences, sources, bans" dependencies
  checks_end
}
