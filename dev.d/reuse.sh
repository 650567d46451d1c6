# shellcheck shell=bash
# Builds in a fresh clone that reuse what an earlier clone, here or elsewhere, compiled: nothing that is compiled holds the place. Sourced by .ci/run.
#
# Cargo tells by the times of files whether they have changed, and in a fresh clone all are new. So the files that are what they were in the commit
# that was compiled last get a time long ago; all others keep the clone's. Where that commit isn't known, since the last run didn't pass, or where the
# clone has changes of its own, nothing is touched, and our own crates are compiled anew.

# reuse_begin TARGET
reuse_begin() {
  local built
  REUSE_MARK="$1/built-commit"
  built="$(cat "$REUSE_MARK" 2> /dev/null || true)"
  # Until this run is done, what lies there is of no one commit.
  rm -f "$REUSE_MARK"
  if [ -z "$built" ] || [ -n "$(git status --porcelain 2> /dev/null)" ] || ! git cat-file -e "$built^{commit}" 2> /dev/null; then return; fi
  local changed
  changed="$(mktemp)"
  git diff --name-only --no-renames "$built" HEAD > "$changed"
  git ls-files | grep -vxFf "$changed" | tr '\n' '\0' | xargs -0 touch --no-create --date='2001-01-01'
  rm -f "$changed"
}

# reuse_end: everything was compiled, for the tests and for the checks, and passed.
reuse_end() {
  local status
  status="$(git status --porcelain 2> /dev/null)" && [ -z "$status" ] || return 0
  git rev-parse HEAD > "$REUSE_MARK"
}
