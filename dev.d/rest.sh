# shellcheck shell=bash
# The stage that asks REST of a running cairn whatever its document allows, and whatever it doesn't. Sourced, not run.

SERVER_STAGES+=(rest)

# rest_url LOG: where the cairn of this log serves REST, as it says itself. It chooses a free port: one chosen before may be taken by then.
rest_url() { sed -n 's|^REST *\(http://[^/]*\)/v1/status.*|\1|p' "$1" | tail -n 1 | grep .; }

# rest_caught_up URL TIP: the newest block is TIP, every worker has done it, and none is being made anew.
rest_caught_up() {
  curl -fsS --max-time 5 "$1/v1/status" | TIP="$2" python3 -c '
import json, os, sys
data = json.load(sys.stdin)["data"]
workers = (data["derived"] or {"workers": []})["workers"]
sys.exit(not workers or data["raw_tip_height"] != os.environ["TIP"] or any(worker["lag_blocks"] != "0" or worker.get("rebuild") for worker in workers))'
}

# A synthetic chain that stands still, derived whole; then schemathesis against its own document.
stage_rest() {
  local python dir url status=0
  python="$(python_deps tests/rest/requirements.txt)" || return 1
  dir="$(mktemp -d "$CACHE/rest.XXXXXX")"
  "$BIN_CAIRN" demo --blocks 200 --block-time-ms 86400000 --data "$dir/data" \
    --rpc-listen 127.0.0.1:0 --listen 127.0.0.1:0 > "$dir/cairn.log" 2>&1 &
  echo $! > "$dir/pid"
  # shellcheck disable=SC2064
  trap "stop_pid '$dir/pid'; rm -rf '$dir'" EXIT
  wait_for 60 rest_url "$dir/cairn.log" || true
  if ! { url="$(rest_url "$dir/cairn.log")" && wait_for 120 rest_caught_up "$url" 200; }; then
    tail -n 40 "$dir/cairn.log" >&2
    die "the demo did not derive its chain within two minutes"
  fi
  # In the folder that goes away: it keeps examples beside it.
  cp tests/rest/schemathesis.toml tests/rest/hooks.py "$dir/"
  (cd "$dir" && CAIRN_REST_URL="$url" "$(dirname "$python")/st" run "$url/v1/openapi.json" --phases examples,coverage,fuzzing \
    --max-examples "${CAIRN_REST_EXAMPLES:-60}" --seed "${CAIRN_REST_SEED:-1}" --workers 2 --warnings off \
    --report-junit-path "$dir/report.xml" "$@") || status=$?
  [ -f "$dir/report.xml" ] || die "schemathesis ended with $status and without a report"
  "$python" tests/rest/totals.py "$dir/report.xml" "$dir/answered.json"
}
