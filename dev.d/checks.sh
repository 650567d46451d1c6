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
  check "clippy, no warnings" locked_cargo clippy -q --workspace --all-targets -- -D warnings
  # All else is compiled with what tests need besides.
  check "cairn with its own features alone" locked_cargo check -q -p cairn
  check "crate graph: only cairn, cairn-dev and tests name a backend" crate_graph
  check "dependencies: licences, sources, bans" dependencies
  checks_end
}
