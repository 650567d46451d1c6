"""What `./dev stats` prints: lines by kind, methods that a store implements, and the largest circle of modules."""

import re
import subprocess
import sys
from pathlib import Path

sys.setrecursionlimit(100_000)
ROOT = Path(__file__).resolve().parent.parent

# Crates and folders that only tests depend on.
TEST_CRATES = {"dev", "flow-node", "model", "sim"}
TEST_PARTS = re.compile(r"/(suite|suite_payload|memory|synthetic|testdata|tests)(/|\.rs$|_)|/tests\.rs$")
SUFFIXES = {".rs": "Rust", ".sh": "shell", ".py": "Python", ".md": "Markdown", ".sql": "SQL", ".toml": "TOML"}
STORE_TRAITS = ROOT / "crates/store/src"


def files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


def kind(path):
    """What a file counts as; None: not at all."""
    name = "/" + path.relative_to(ROOT).as_posix()
    if path.suffix == ".md":
        return "documents"
    crate = re.match(r"/crates/([^/]+)/(src|tests|examples|benches)/", name)
    if crate is None:
        return "scripts" if path.suffix in (".sh", ".py") or name == "/dev" else None
    if path.suffix not in (".rs", ".sql"):
        return None
    if crate[1] in TEST_CRATES:
        return "tools and worlds of tests"
    if crate[2] != "src":
        return "tests"
    return "suites in product crates" if TEST_PARTS.search(name) else "product"


def lines():
    counts = {}
    for path in files():
        what = kind(path)
        if what is None:
            continue
        text = path.read_text(errors="replace")
        if what == "product" and "#[cfg(test)]\nmod tests {" in text:
            product, tests = text.split("#[cfg(test)]\nmod tests {", 1)
            counts["unit tests"] = counts.get("unit tests", 0) + tests.count("\n")
            text = product
        counts[what] = counts.get(what, 0) + text.count("\n")
    return counts


def store_methods():
    """Methods without a default in the traits that a store implements: (trait, methods)."""
    found = []
    for path in sorted(STORE_TRAITS.rglob("*.rs")):
        if TEST_PARTS.search("/" + path.relative_to(ROOT).as_posix()):
            continue
        text = path.read_text()
        for trait in re.finditer(r"pub trait (\w+)[^{;]*\{", text):
            depth, at = 1, trait.end()
            while depth:
                depth += {"{": 1, "}": -1}.get(text[at], 0)
                at += 1
            body = re.sub(r"//[^\n]*", "", text[trait.end() : at - 1])
            methods = len(re.findall(r"\bfn \w+[^{;]*;", body))
            if methods:
                found.append((trait[1], methods))
    return found


def modules():
    """For each module of a crate's source, the modules of that crate that it uses."""
    graph = {}
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        match = re.match(r"crates/([^/]+)/src/(.+)\.rs$", name)
        if not match:
            continue
        parts = match[2].split("/")
        parts = parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts
        own = (match[1], *parts)
        uses = graph.setdefault(own, set())
        text = path.read_text()
        for use in re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?use ((?:crate|super)[^;]*);", text, re.M):
            use = re.sub(r"\s+", "", use)
            for target in expand(use):
                words = target.split("::")
                base = [match[1]] if words[0] == "crate" else list(own)
                for word in words:
                    if word == "super":
                        base = base[:-1]
                    elif word not in ("crate", "self"):
                        base.append(word)
                uses.add(tuple(base))
    known = set(graph)
    for own, uses in graph.items():
        resolved = set()
        for target in uses:
            while len(target) > 1 and target not in known:
                target = target[:-1]
            # A parent names its children anyway, and children take what stands beside them from it.
            if target in known and target != own and own[: len(target)] != target:
                resolved.add(target)
        graph[own] = resolved
    return graph


def expand(use):
    """`a::{b, c::d}` as `a::b` and `a::c::d`."""
    if "{" not in use:
        return [use.split("as")[0] if " as " in use else use]
    prefix, rest = use.split("{", 1)
    depth, item, found = 0, "", []
    for char in rest.rsplit("}", 1)[0] + ",":
        if char == "," and depth == 0:
            if item:
                found.extend(prefix + one for one in expand(item))
            item = ""
            continue
        depth += {"{": 1, "}": -1}.get(char, 0)
        item += char
    return found


def circles(graph):
    """Strongly connected components of more than one module, the largest first (Tarjan)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in on_stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            members = []
            while True:
                members.append(stack.pop())
                on_stack.discard(members[-1])
                if members[-1] == node:
                    break
            if len(members) > 1:
                found.append(sorted("::".join(member) for member in members))

    for node in graph:
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


def main():
    counts = lines()
    for what, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:8}  {what}")
        print(f"figure lines_{what.replace(' ', '_')} {count} lines")
    traits = store_methods()
    total = sum(methods for _, methods in traits)
    print(f"\n{total} methods without a default in {len(traits)} traits of the stores:")
    print("  " + ", ".join(f"{name} {methods}" for name, methods in traits))
    print(f"figure store_methods {total} methods")
    print(f"figure store_traits {len(traits)} traits")
    found = circles(modules())
    print(f"\n{len(found)} circles of modules")
    for members in found[:5]:
        print(f"  {len(members)}: {', '.join(members[:12])}{', …' if len(members) > 12 else ''}")
    print(f"figure largest_circle {max(map(len, found), default=0)} modules")


main()
