# shellcheck shell=bash
# s3s-fs, an S3 server over a local directory that checks keys and signatures: crate s3s-fs.

S3S_PORT="${CAIRN_S3S_PORT:-18548}"
S3S_VERSION=0.14.1

s3s_get() {
  need_rust
  local root="$CACHE/s3s-fs-$S3S_VERSION"
  if [ ! -x "$root/bin/s3s-fs" ]; then
    say "building s3s-fs $S3S_VERSION (some minutes, once)"
    # In a target folder of its own, so that it neither waits for the project's build nor disturbs it.
    CARGO_TARGET_DIR="$root/target" cargo install s3s-fs --version "$S3S_VERSION" --locked --features binary --root "$root" -q >&2 \
      || die "s3s-fs does not build. How to get it: cargo install s3s-fs --version $S3S_VERSION --locked --features binary"
    rm -rf "$root/target"
  fi
  printf '%s\n' "$root/bin/s3s-fs"
}

s3s_start() {
  need curl "https://curl.se" curl
  local binary data="$RUN/s3s/data"
  binary="$(s3s_get)" || return 1
  # A folder is a bucket.
  rm -rf "$data" && mkdir -p "$data/cairn"
  server_launch s3s "$binary" --host 127.0.0.1 --port "$S3S_PORT" --access-key cairn --secret-key cairn-secret "$data"
}

s3s_stop() { stop_pid "$RUN/s3s/pid"; }
# Any answer will do: without a signature it is a refusal.
s3s_check() { curl -s -o /dev/null --max-time 5 "http://127.0.0.1:$S3S_PORT/"; }
s3s_url() { printf 'http://cairn:cairn-secret@127.0.0.1:%s/cairn\n' "$S3S_PORT"; }
