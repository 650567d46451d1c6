"""Asks two cairns that hold the same chain the same questions, and demands the same answers, byte for byte.

    compare.py [--holes] [--passed N] URL_A URL_B

Every path of the OpenAPI document is asked for, with each of its parameters (and each of the values that one may have), and has to give a good answer at least once:
lists page by page, some to their end, what they name one by one, and the stream of blocks, replayed whole, also from before the reorgs: the chain has forked, as often on both sides. With `--holes` the derived rows have holes, and the
answers have to name them. Prints `N passed, M failed`, with those that passed before (`--passed`).

Two things in an answer name the side that gave it, and are no part of what is compared: its own address, and the seal of a cursor (`next`, `resume`), its
last 12 bytes. Each store seals with a key of its own, so that it refuses another's; what a cursor says under its seal is compared, and each side follows its own.

Names and code of contracts say at which block a node was asked (`asked_at_height`): where the archive was when a worker came by. So let both sides ask anew where
they stand still, before this.
"""

import argparse
import base64
import binascii
import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

PAGES = 3
# To the end, of any list here.
ALL_PAGES = 1_000
SAMPLES = 12
# So many holes an answer names, at most.
MAX_INCOMPLETE = 100
CURSORS = re.compile(r'("next"|"resume"):"([A-Za-z0-9_-]+)"')
SEAL_BYTES = 12
# What only Flow has: on an EVM chain no worker fills the tables behind it, and that has to be the answer.
OF_FLOW = {
    "/v1/accounts/{address}/keys",
    "/v1/contracts/{address}/versions",
    "/v1/flow/evm/absences",
    "/v1/flow/evm/blocks",
    "/v1/flow/evm/gaps",
    "/v1/flow/evm/splits",
}
STREAM = "/v1/blocks/stream"
# So long a stream may take to come to the tip.
STREAM_S = 60


class Pair:
    def __init__(self, bases):
        self.bases = bases
        self.seen = {}
        self.passed = 0
        self.failures = []
        self.statuses = {}
        # Of each template of the document: the statuses that requests of its kind had.
        self.statuses_of = {}
        self.templates = []
        # Of the document: template, parameter of a query, and a value where only some may be. And those that had a good answer.
        self.parameters = set()
        self.parameters_seen = set()
        # Of each answer: how many holes it counts, and how many it names.
        self.holes = []

    def get(self, base, path, headers={}):
        try:
            with urllib.request.urlopen(urllib.request.Request(base + path, headers=headers), timeout=30) as answer:
                return answer.status, answer.headers.get("content-type"), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers.get("content-type"), error.read().decode()

    def read_document(self):
        document = json.loads(self.get(self.bases[0], "/v1/openapi.json")[2])
        self.templates = list(document["paths"])
        for template, methods in document["paths"].items():
            for one in methods["get"].get("parameters", []):
                if one["in"] == "query" and template not in OF_FLOW:
                    self.parameters.update((template, one["name"], value) for value in values_of(one["schema"]))

    def template_of(self, path):
        parts = path.split("/")
        fits = [
            template
            for template in self.templates
            if len(parts) == len(template.split("/"))
            and all(part == own or own.startswith("{") for part, own in zip(parts, template.split("/")))
        ]
        # One without a place to fill goes before.
        return min(fits, key=lambda template: template.count("{"), default=None)

    def count(self, path, status):
        self.statuses[status] = self.statuses.get(status, 0) + 1
        url = urllib.parse.urlsplit(path)
        template = self.template_of(url.path)
        if template:
            self.statuses_of.setdefault(template, set()).add(status)
        if status == 200:
            for name, value in urllib.parse.parse_qsl(url.query):
                self.parameters_seen.update(((template, name, None), (template, name, value)))

    def judge_paths(self):
        """Every path has given a good answer, but for those of Flow, which say that nobody fills them."""
        for template in self.templates:
            statuses = self.statuses_of.get(template, set())
            if template in OF_FLOW:
                if statuses != {501}:
                    self.failures.append((template, f"it is Flow's own, and the statuses were {sorted(statuses)}, not 501 alone"))
            elif 200 not in statuses:
                self.failures.append((template, f"no request of this kind had a good answer; the statuses were {sorted(statuses)}"))
        for template, name, value in sorted(self.parameters - self.parameters_seen, key=str):
            self.failures.append((template, f"no request with {name}{'=' + value if value else ''} had a good answer"))
        for template in OF_FLOW - set(self.templates):
            self.failures.append((template, "the document has no such path"))

    def events(self, base, last_event_id, last_height):
        """The frames of the stream after an event, up to the block of a height; without an event, the first one."""
        request = urllib.request.Request(base + STREAM)
        if last_event_id is not None:
            request.add_header("Last-Event-ID", last_event_id)
        frames, lines = [], []
        deadline = time.monotonic() + STREAM_S
        with urllib.request.urlopen(request, timeout=30) as answer:
            self.count(STREAM, answer.status)
            for line in answer:
                if time.monotonic() > deadline:
                    break
                if line.strip():
                    lines.append(line.decode())
                    continue
                # A comment says that the stream is there.
                frame, lines = "".join(one for one in lines if not one.startswith(":")), []
                if not frame:
                    continue
                frames.append(frame)
                if last_event_id is None or frame_of(frame).get("id", "::").split(":")[1] == str(last_height):
                    break
        return frames

    def compare_events(self, tip):
        """The newest block as the stream gives it, and all blocks after the first one, for who knows all reorgs and for who knows none."""
        newest = [self.events(base, None, None)[0] for base in self.bases]
        marks = [frame_of(frame)["id"].split(":")[0] for frame in newest]
        if marks[0] == "0":
            self.failures.append((STREAM, "the chain has not forked"))
        first = json.loads(self.get(self.bases[0], "/v1/blocks/0")[2])["data"]["id"]
        replays = [self.events(base, f"{mark}:0:{first}", tip) for base, mark in zip(self.bases, marks)]
        from_before = [self.events(base, f"0:0:{first}", tip) for base in self.bases]
        for what, (ours, theirs) in (
            ("the newest event", [[one] for one in newest]),
            ("the replay", replays),
            ("the replay from before the reorgs", from_before),
        ):
            differs = next((pair for pair in zip(ours, theirs) if pair[0] != pair[1]), None)
            if differs or len(ours) != len(theirs):
                ours, theirs = differs or (f"{len(ours)} events", f"{len(theirs)} events")
                self.failures.append((f"{STREAM} {what}", [(200, "", ours), (200, "", theirs)]))
            else:
                self.passed += len(ours)
        heights = [json.loads(frame_of(frame).get("data", "{}")).get("height") for frame in replays[0]]
        if heights != [str(height) for height in range(1, tip + 1)]:
            self.failures.append((STREAM, f"the replay has the heights {heights[:5]} … {heights[-5:]}, {len(heights)} of {tip}"))
        # What can't be gone on from is refused in the same words.
        for mark in ("nonsense", f"{marks[0]}:1:{first}", f"{int(marks[0]) + 9}:0:{first}"):
            refused = [self.get(base, STREAM, {"Last-Event-ID": mark}) for base in self.bases]
            if refused[0] != refused[1] or refused[0][0] < 400:
                self.failures.append((f"{STREAM} after {mark}", refused))
            else:
                self.passed += 1

    def ask(self, path, pages=PAGES):
        """Compares a path and the pages after it; gives back all that side A's pages hold."""
        if path in self.seen:
            return self.seen[path]
        found, paths = [], [path, path]
        for _ in range(pages):
            answers = [self.get(base, one) for base, one in zip(self.bases, paths)]
            self.count(paths[0], answers[0][0])
            masked = [
                (status, kind, CURSORS.sub(without_seal, text).replace(base, "BASE"))
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


def values_of(schema):
    """The values that a parameter may have, where they are few; else `[None]`."""
    variants = [schema, *schema.get("oneOf", []), *schema.get("anyOf", [])]
    values = [value for variant in variants for value in variant.get("enum", []) if value is not None]
    values += [variant["const"] for variant in variants if "const" in variant]
    return values or [None]


def without_seal(found):
    """A cursor's bytes as hexadecimal digits, but for its seal. What is no cursor stays as it is."""
    key, text = found.groups()
    try:
        told = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))[:-SEAL_BYTES]
    except binascii.Error:
        return found.group()
    return f'{key}:"{told.hex()}"'


def frame_of(text):
    """The fields of an event."""
    return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)


def names_of(one):
    """What a token or a collection can be searched by: beginnings of its name, of the last word in it, and of its symbol."""
    said = one.get("token") or one.get("collection") or {}
    words = [said.get("name"), (said.get("name") or "").split(" ")[-1], said.get("symbol")]
    return [urllib.parse.quote(word[:5]) for word in words if word]


def in_both_orders(pair, path):
    joint = "&" if "?" in path else "?"
    for order in ("asc", "desc"):
        pair.ask(f"{path}{joint}order={order}&limit=7")


def walk(pair):
    pair.read_document()
    pair.ask("/v1/openapi.json")
    tip = int(json.loads(pair.get(pair.bases[0], "/v1/status")[2])["data"]["raw_tip_height"])
    pair.ask("/v1/status")
    days = [day["date"] for day in pair.ask("/v1/stats/daily?limit=200&order=asc", ALL_PAGES)]
    pair.ask("/v1/stats/daily")
    pair.ask(f"/v1/stats/daily?from={days[0]}&to={days[len(days) // 2]}&order=desc&limit=1")
    addresses = set()
    for height in sorted({0, 1, 2, tip // 3, tip // 2, tip - 1, tip, tip + 1}):
        blocks = pair.ask(f"/v1/blocks/{height}")
        for block in blocks:
            pair.ask(f"/v1/blocks/{block['id']}")
            in_both_orders(pair, f"/v1/blocks/{block['id']}/transactions")
        for transaction in pair.ask(f"/v1/blocks/{height}/transactions?limit=5")[:SAMPLES]:
            path = f"/v1/transactions/{transaction['id']}"
            of_block = f"?height={height}"
            of_place = f"?index={transaction['transaction_index']}"
            for suffix in ("", "?events=true", "?events=false", of_block, "/events", f"/events{of_block}&limit=1", "/raw",
                           "/raw" + of_block, "/transfers", f"/transfers{of_block}&limit=1", of_place, f"/events{of_place}", f"/raw{of_place}", f"/transfers{of_place}"):
                pair.ask(path + suffix)
            addresses.update(v for k, v in transaction.items() if isinstance(v, str) and re.fullmatch("0x[0-9a-f]{40}", v))
    for path in ("/v1/blocks?limit=150", "/v1/transactions?limit=200", "/v1/contracts?limit=9", "/v1/tokens?limit=3", "/v1/nft-collections?limit=3"):
        pair.ask(path, ALL_PAGES)
    for path in ("/v1/blocks", "/v1/transactions", "/v1/contracts"):
        in_both_orders(pair, path)
    for path in ("/v1/flow/evm/blocks?limit=7", "/v1/flow/evm/gaps?limit=7", "/v1/flow/evm/absences?limit=7", "/v1/flow/evm/splits?limit=7"):
        pair.ask(path)
    for path in ("/v1/tokens", "/v1/nft-collections"):
        for sort in [value for template, name, value in sorted(pair.parameters, key=str) if (template, name) == (path, "sort")]:
            pair.ask(f"{path}?sort={sort}&limit=2", ALL_PAGES)
    for token in pair.ask("/v1/tokens?limit=50")[:SAMPLES]:
        address = token["address"]
        addresses.add(address)
        for suffix in ("", "/holders?limit=7"):
            pair.ask(f"/v1/tokens/{address}{suffix}")
        in_both_orders(pair, f"/v1/tokens/{address}/transfers")
        pair.ask(f"/v1/contracts/{address}/code")
        in_both_orders(pair, f"/v1/contracts/{address}/transactions")
        for name in names_of(token):
            pair.ask(f"/v1/search?q={name}")
        for holder in pair.ask(f"/v1/tokens/{address}/holders?limit=7")[:SAMPLES]:
            addresses.update(v for v in holder.values() if isinstance(v, str) and re.fullmatch("0x[0-9a-f]{40}", v))
    for collection in pair.ask("/v1/nft-collections?limit=50")[:SAMPLES]:
        path = f"/v1/nft-collections/{collection['address']}"
        for suffix in ("", "/owners?limit=9"):
            pair.ask(path + suffix)
        in_both_orders(pair, f"{path}/transfers")
        for name in names_of(collection):
            pair.ask(f"/v1/search?q={name}")
        for item in pair.ask(path + "/items?limit=9")[:SAMPLES]:
            number = item.get("nft_id") or item.get("token_id") or item.get("id")
            pair.ask(f"{path}/items/{number}")
            pair.ask(f"{path}/items/{number}/owners?limit=1", ALL_PAGES)
            pair.ask(f"{path}/transfers?item={number}&limit=2", ALL_PAGES)
        in_both_orders(pair, f"{path}/items")
    for contract in pair.ask("/v1/contracts?limit=20")[:SAMPLES]:
        for suffix in ("", "/code", "/versions"):
            pair.ask(f"/v1/contracts/{contract['address']}{suffix}")
        in_both_orders(pair, f"/v1/contracts/{contract['address']}/transactions")
        addresses.add(contract["address"])
    for address in sorted(addresses)[: 3 * SAMPLES]:
        for list_name in ("", "/transactions", "/transfers", "/nft-transfers", "/holdings", "/nfts", "/contracts", "/keys"):
            pair.ask(f"/v1/accounts/{address}{list_name}" + ("?limit=2" if list_name else ""))
        for list_name in ("transfers", "nft-transfers"):
            in_both_orders(pair, f"/v1/accounts/{address}/{list_name}")
            for of in sorted({one["token_identifier"] for one in pair.ask(f"/v1/accounts/{address}/{list_name}?limit=6")})[:2]:
                in_both_orders(pair, f"/v1/accounts/{address}/{list_name}?token={of}")
        for list_name in ("transactions", "contracts"):
            in_both_orders(pair, f"/v1/accounts/{address}/{list_name}")
        pair.ask(f"/v1/search?q={address}")
        pair.ask(f"/v1/search?q={address.upper().replace('0X', '0X')}")
        for log in pair.ask(f"/v1/logs?address={address}&limit=11")[:2]:
            topics = "".join(f"&topic{place}={topic}" for place, topic in enumerate(log["topics"]))
            in_both_orders(pair, f"/v1/logs?address={address}{topics}")
            for place, topic in enumerate(log["topics"]):
                pair.ask(f"/v1/logs?topic{place}={topic}&limit=5")
    transfer = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
    pair.ask(f"/v1/logs?topic0={transfer}&limit=190", ALL_PAGES)
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
        "/v1/search?q=club",
        "/v1/search?q=nobody%20is%20called%20so",
    ):
        pair.ask(path)
    pair.compare_events(tip)


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
    pair.judge_paths()
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
