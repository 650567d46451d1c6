"""Asks two cairns that hold the same chain the same questions, and demands the same answers, byte for byte.

    compare.py [--holes] [--passed N] URL_A URL_B

Every path of the OpenAPI document is asked for: lists page by page, and what they name one by one. Cursors are sealed with a key of each
store, so each side follows its own and they are not compared. With `--holes` the derived rows have holes, and the answers have to name them. Prints
`N passed, M failed`, with those that passed before (`--passed`).
"""

import argparse
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request

PAGES = 3
SAMPLES = 12
# So many holes an answer names, at most.
MAX_INCOMPLETE = 100
CURSORS = re.compile(r'("next"|"resume"):"[^"]+"')


class Pair:
    def __init__(self, bases):
        self.bases = bases
        self.seen = {}
        self.passed = 0
        self.failures = []
        self.statuses = {}
        # Of each answer: how many holes it counts, and how many it names.
        self.holes = []

    def get(self, base, path):
        try:
            with urllib.request.urlopen(base + path, timeout=30) as answer:
                return answer.status, answer.headers.get("content-type"), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers.get("content-type"), error.read().decode()

    def ask(self, path):
        """Compares a path and the pages after it; gives back all that side A's pages hold."""
        if path in self.seen:
            return self.seen[path]
        found, paths = [], [path, path]
        for _ in range(PAGES):
            answers = [self.get(base, one) for base, one in zip(self.bases, paths)]
            self.statuses[answers[0][0]] = self.statuses.get(answers[0][0], 0) + 1
            masked = [
                (status, kind, re.sub(CURSORS, r"\1:CURSOR", text).replace(base, "BASE"))
                for base, (status, kind, text) in zip(self.bases, answers)
            ]
            if masked[0] != masked[1]:
                self.failures.append((path, masked))
                break
            self.passed += 1
            bodies = [json.loads(text) for _, _, text in answers]
            if meta := bodies[0].get("meta"):
                self.holes.append((int(meta["incomplete_count"]), len(meta["incomplete"])))
            if answers[0][0] != 200 or "data" not in bodies[0]:
                break
            data = bodies[0]["data"]
            found.extend(data if isinstance(data, list) else [data])
            cursors = [(body.get("page") or {}).get("next") for body in bodies]
            if not cursors[0]:
                break
            joint = "&" if "?" in path else "?"
            paths = [f"{path}{joint}cursor={urllib.parse.quote(cursor)}" for cursor in cursors]
        self.seen[path] = found
        return found


def walk(pair):
    document = json.loads(pair.get(pair.bases[0], "/v1/openapi.json")[2])
    pair.ask("/v1/openapi.json")
    tip = int(json.loads(pair.get(pair.bases[0], "/v1/status")[2])["data"]["raw_tip_height"])
    pair.ask("/v1/status")
    pair.ask("/v1/stats/daily")
    addresses = set()
    for height in sorted({0, 1, 2, tip // 3, tip // 2, tip - 1, tip, tip + 1}):
        blocks = pair.ask(f"/v1/blocks/{height}")
        for block in blocks:
            pair.ask(f"/v1/blocks/{block['id']}")
        for transaction in pair.ask(f"/v1/blocks/{height}/transactions?limit=5")[:SAMPLES]:
            path = f"/v1/transactions/{transaction['id']}"
            for suffix in ("", "?events=true", "/events", "/raw", "/transfers"):
                pair.ask(path + suffix)
            addresses.update(v for k, v in transaction.items() if isinstance(v, str) and re.fullmatch("0x[0-9a-f]{40}", v))
    for path in ("/v1/blocks?limit=7", "/v1/blocks?order=asc&limit=7", "/v1/transactions?limit=7", "/v1/flow/evm/blocks?limit=7", "/v1/flow/evm/gaps?limit=7", "/v1/flow/evm/absences?limit=7", "/v1/flow/evm/splits?limit=7"):
        pair.ask(path)
    for token in pair.ask("/v1/tokens?limit=50")[:SAMPLES]:
        address = token["address"]
        addresses.add(address)
        for suffix in ("", "/holders?limit=7", "/transfers?limit=9"):
            pair.ask(f"/v1/tokens/{address}{suffix}")
        for holder in pair.ask(f"/v1/tokens/{address}/holders?limit=7")[:SAMPLES]:
            addresses.update(v for v in holder.values() if isinstance(v, str) and re.fullmatch("0x[0-9a-f]{40}", v))
    for collection in pair.ask("/v1/nft-collections?limit=50")[:SAMPLES]:
        path = f"/v1/nft-collections/{collection['address']}"
        for suffix in ("", "/owners?limit=9", "/transfers?limit=9"):
            pair.ask(path + suffix)
        for item in pair.ask(path + "/items?limit=9")[:SAMPLES]:
            number = item.get("nft_id") or item.get("token_id") or item.get("id")
            pair.ask(f"{path}/items/{number}")
    for contract in pair.ask("/v1/contracts?limit=20")[:SAMPLES]:
        for suffix in ("", "/code", "/versions"):
            pair.ask(f"/v1/contracts/{contract['address']}{suffix}")
        addresses.add(contract["address"])
    for address in sorted(addresses)[: 3 * SAMPLES]:
        for list_name in ("", "/transactions", "/transfers", "/nft-transfers", "/holdings", "/nfts", "/contracts", "/keys"):
            pair.ask(f"/v1/accounts/{address}{list_name}" + ("?limit=6" if list_name else ""))
        pair.ask(f"/v1/search?q={address}")
        pair.ask(f"/v1/search?q={address.upper().replace('0X', '0X')}")
        pair.ask(f"/v1/logs?address={address}&limit=11")
    transfer = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
    for path in (
        f"/v1/logs?topic0={transfer}&limit=13",
        f"/v1/logs?topic0={transfer}&from={tip // 2}&to={tip}&limit=13",
        "/v1/logs?from=5&to=9",
        "/v1/nothing",
        "/v1/blocks/zz",
        "/v1/blocks?limit=0",
        "/v1/blocks?cursor=abc",
        "/v1/blocks?unknown=1",
        f"/v1/search?q={tip}",
        "/v1/search?q=tok",
    ):
        pair.ask(path)
    asked = [urllib.parse.urlsplit(path).path.split("/")[2:] for path in pair.seen]
    for template in document["paths"]:
        parts = template.split("/")[2:]
        if parts[-1] in ("stream", "docs"):
            continue
        if not any(
            len(parts) == len(one) and all(p.startswith("{") or p == o for p, o in zip(parts, one)) for one in asked
        ):
            pair.failures.append((template, "no request of this kind was made"))


def judge_holes(pair, has_holes):
    counts = {count for count, _ in pair.holes}
    if not has_holes:
        if counts != {0}:
            pair.failures.append(("all", f"holes are named where there are none: {counts}"))
        return
    for what, is_there in (
        ("an answer without holes", 0 in counts),
        ("an answer about one block alone, which names it", 1 in counts or 2 in counts),
        ("an answer with more holes than it names", any(count > named == MAX_INCOMPLETE for count, named in pair.holes)),
    ):
        if not is_there:
            pair.failures.append(("all", f"{what} is missing: {counts}"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("urls", nargs=2)
    parser.add_argument("--holes", action="store_true")
    parser.add_argument("--passed", type=int, default=0)
    arguments = parser.parse_args()
    pair = Pair(arguments.urls)
    walk(pair)
    judge_holes(pair, arguments.holes)
    pair.passed += arguments.passed
    for path, what in pair.failures[:20]:
        print(f"FAILED {path}")
        if isinstance(what, str):
            print("  " + what)
            continue
        (_, _, ours), (_, _, theirs) = what
        differs = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        for side, (status, kind, text) in zip("AB", what):
            print(f"  {side}: {status} {kind} …{text[max(0, differs - 60):differs + 120]}")
    print("statuses: " + ", ".join(f"{count} × {status}" for status, count in sorted(pair.statuses.items())))
    if pair.statuses.get(200, 0) < 100:
        pair.failures.append(("all", "fewer than 100 good answers"))
    print(f"{pair.passed} passed, {len(pair.failures)} failed")
    sys.exit(1 if pair.failures else 0)


main()
