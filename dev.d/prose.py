"""Checks the documents and the commit subjects by the rules of CONTRIBUTING.md.

  prose.py

A sentence has at most 25 words, a table cell 20, a page 150 lines, an ADR 60, the subject of a commit 72 characters. A link leads
to a file of this repository and a heading in it.
Prints each fault as `FILE:LINE: what`, then `N passed, M failed`; fails where there is one.
"""

import re
import subprocess
import sys
from pathlib import Path

SENTENCE_WORDS, CELL_WORDS, PAGE_LINES, ADR_LINES, SUBJECT_CHARS, COMMITS = 25, 20, 150, 60, 72, 20
# It is history, and grows.
CHANGELOG = "CHANGELOG.md"
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+")
# Words after which a full stop ends no sentence.
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|no|approx)\.$", re.I)


def words(text):
    """How many words a reader reads: code and a link's target count as one."""
    text = re.sub(r"`[^`]*`", "code", LINK.sub("link", text))
    return len([word for word in text.split() if re.search(r"\w", word)])


def sentences(text):
    begun = ""
    for piece in SENTENCE_END.split(text):
        begun = f"{begun} {piece}".strip()
        if not ABBREVIATION.search(begun):
            yield begun
            begun = ""
    if begun:
        yield begun


def slug(heading):
    """A heading's anchor, as GitHub makes it."""
    plain = re.sub(r"[`*]", "", LINK.sub(lambda link: link.group(0).split("]")[0][1:], heading)).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def prose_lines(text):
    """(number, line) outside code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def page_faults(text):
    block, begun = [], 0
    for number, line in [*prose_lines(text), (0, "")]:
        stripped = line.strip()
        is_item = re.match(r"([-*]|\d+\.) ", stripped)
        if stripped.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                if words(cell) > CELL_WORDS:
                    yield number, f"a cell of {words(cell)} words: {cell.strip()[:60]}…"
        if block and (not stripped or is_item or stripped.startswith(("|", "#", ">"))):
            for sentence in sentences(" ".join(block)):
                if words(sentence) > SENTENCE_WORDS:
                    yield begun, f"a sentence of {words(sentence)} words: {sentence[:60]}…"
            block = []
        if stripped and not stripped.startswith(("|", "#")):
            if not block:
                begun = number
            block.append(re.sub(r"^([-*]|\d+\.) ", "", stripped))


def link_faults(path, text):
    for number, line in prose_lines(text):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            page = (path.parent / name).resolve() if name else path.resolve()
            if not page.exists():
                yield number, f"a link to nothing: {target}"
            elif anchor and page.suffix == ".md":
                headings = [line.lstrip("# ") for _, line in prose_lines(page.read_text()) if line.startswith("#")]
                if anchor not in map(slug, headings):
                    yield number, f"a link to no heading: {target}"


def commit_faults():
    def log(*args):
        return subprocess.run(["git", "log", *args], capture_output=True, text=True, check=True).stdout.splitlines()

    # The rule is as old as this file.
    first = log("--diff-filter=A", "--format=%h", "--", "dev.d/prose.py")
    since = ["--not", f"{first[-1]}^@"] if first else []
    for line in log(f"-{COMMITS}", "--no-merges", "--format=%h %s", "HEAD", *since):
        commit, _, subject = line.partition(" ")
        if len(subject) > SUBJECT_CHARS:
            yield f"commit {commit}: a subject of {len(subject)} characters, more than {SUBJECT_CHARS}"
        if not subject[:1].isupper() or subject.endswith("."):
            yield f"commit {commit}: a subject begins with a capital and ends without a full stop: {subject}"


def main():
    listed = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True)
    faults, pages = list(commit_faults()), 0
    for name in listed.stdout.split():
        path, pages = Path(name), pages + 1
        text = path.read_text()
        lines, most = text.count("\n"), ADR_LINES if "/adr/" in name else PAGE_LINES
        if lines > most and name != CHANGELOG:
            faults.append(f"{name}: {lines} lines, more than {most}")
        for number, fault in [*page_faults(text), *link_faults(path, text)]:
            faults.append(f"{name}:{number}: {fault}")
    for fault in faults:
        print(fault)
    print(f"{pages} passed, {len(faults)} failed")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
