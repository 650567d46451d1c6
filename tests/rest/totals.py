"""Prints what schemathesis found, operation by operation, from its JUnit report, and the line that ./dev counts.

    totals.py REPORT ANSWERED

ANSWERED is what the hooks wrote down: the statuses that each path answered. A path that never had a good answer counts as failed, but for those that said that no
worker fills them, which tests/rest/schemathesis.toml allows to Flow's own.
"""

import json
import sys
import xml.etree.ElementTree as ElementTree

with open(sys.argv[2], encoding="utf-8") as file:
    answered = json.load(file)
passed = failed = 0
for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
    name = case.get("name")
    if any(child.tag in ("failure", "error") for child in case):
        failed += 1
        print("FAILED", name)
    elif not any(child.tag == "skipped" for child in case):
        passed += 1
for path, statuses in sorted(answered.items()):
    if not {200, 501} & set(statuses):
        failed += 1
        print(f"FAILED {path}: no good answer among {statuses}")
if len(answered) < 30:
    failed += 1
    print(f"FAILED only {len(answered)} paths were asked")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
