"""Prints what schemathesis found, operation by operation, from its JUnit report, and the line that ./dev counts."""

import sys
import xml.etree.ElementTree as ElementTree

passed = failed = 0
for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
    if any(child.tag in ("failure", "error") for child in case):
        failed += 1
        print("FAILED", case.get("name"))
    elif not any(child.tag == "skipped" for child in case):
        passed += 1
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
