"""Runs test binaries beside each other, which `cargo test` runs one after the other.

  cargo build --workspace --tests --message-format=json > MESSAGES
  run_tests.py --messages MESSAGES [--jobs N] [--times FILE] [--only NAME]... [-- ARGUMENTS OF THE BINARIES]

Each binary runs as under `cargo test`: in its package's folder. What one prints is printed whole when it ends. One that fails
without a failed test, that has no test result, or that is not done in time counts as one failed. The longest are begun first, by
the seconds that FILE has of the last run. Those that need processors and nothing else run one after another beside them, and yield: they
take what the others leave while they wait for a server or a clock. Ends with success where everything passed.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Of one binary, in seconds; the longest take about one minute.
TIMEOUT_S = 1200
# Of one that yields.
YIELDING_TIMEOUT_S = 3 * TIMEOUT_S
# They look at no clock and wait for nobody.
YIELDING = ("model tests/protocol.rs", "sim tests/seeds.rs")
RESULT = re.compile(rb"^test result: .*? (\d+) passed; (\d+) failed;", re.M)

running = set()
lock = threading.Lock()


def binaries(messages, only):
    """[(name, executable, folder of its package)] of cargo's messages."""
    found = {}
    for line in Path(messages).read_text().splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        folder = Path(message["manifest_path"]).parent
        name = f"{folder.name} {Path(message['target']['src_path']).relative_to(folder)}"
        if only and name not in only:
            continue
        found[name] = (name, message["executable"], folder)
    return list(found.values())


def run(name, executable, folder, arguments):
    """(name, exit code or None, output, seconds)"""
    begun = time.monotonic()
    environment = os.environ | {"CARGO_MANIFEST_DIR": str(folder)}
    with tempfile.TemporaryFile() as output:
        # In a group of its own, so that what it has started ends with it.
        process = subprocess.Popen(
            [executable, *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )
        with lock:
            running.add(process)
        if name in YIELDING:
            yield_to_others(process)
        try:
            code = process.wait(timeout_s(name))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            kill(process)
            process.wait()
            with lock:
                running.discard(process)
        output.seek(0)
        return name, code, output.read(), time.monotonic() - begun


def timeout_s(name):
    return YIELDING_TIMEOUT_S if name in YIELDING else TIMEOUT_S


def yield_to_others(process):
    """Where the kernel shares time out by session, as Linux may, niceness counts within one alone, so its session is given it too."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, 19)
        Path(f"/proc/{process.pid}/autogroup").write_text("19")


def kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def stop(*_):
    with lock:
        for process in running:
            kill(process)
    os._exit(130)


def show(name, code, output, seconds):
    """Prints what a binary said, and whether it passed."""
    results = RESULT.findall(output)
    failed = sum(int(failed) for _, failed in results)
    sys.stdout.flush()
    print(f"\n     Running {name} ({seconds:.1f} s)", flush=True)
    sys.stdout.buffer.write(output)
    sys.stdout.buffer.flush()
    if code == 0 and results and failed == 0:
        return True
    if failed == 0:
        reason = f"not done after {timeout_s(name)} s" if code is None else f"it ended with {code} and {len(results)} results"
        print(f"{name}: {reason}\ntest result: FAILED. 0 passed; 1 failed; 0 ignored", flush=True)
    return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", required=True)
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--times")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()

    times = {}
    if options.times and Path(options.times).is_file():
        times = json.loads(Path(options.times).read_text())
    tests = binaries(options.messages, options.only)
    if not tests:
        sys.exit("error: cargo's messages name no test binary")
    # What is new may take long.
    tests.sort(key=lambda test: -times.get(test[0], 60.0))
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)

    passed, last_times = [], {}
    begun = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool, ThreadPoolExecutor(1) as beside:
        def one(test):
            name, code, output, seconds = run(*test, options.arguments)
            with lock:
                passed.append(show(name, code, output, seconds))
                last_times[name] = round(seconds, 1)

        for done in [(beside if test[0] in YIELDING else pool).submit(one, test) for test in tests]:
            done.result()
    slowest = sorted(last_times.items(), key=lambda entry: -entry[1])[:8]
    print(f"\n{len(tests)} binaries, {options.jobs} at a time, in {time.monotonic() - begun:.0f} s; the longest: "
          + ", ".join(f"{name} {seconds} s" for name, seconds in slowest), flush=True)
    if options.times and not options.only:
        Path(options.times).write_text(json.dumps(last_times, indent=1))
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
