"""The public names and their signatures are those of ``tests/package/public_names.txt``."""

import difflib
from pathlib import Path

import pytest
from public_names import lines

STORED = Path(__file__).with_name("public_names.txt")
ADVICE = """
If the change is meant, write a file about it into changelog.d, and store the names anew:
    python tests/helpers/public_names.py > tests/package/public_names.txt
"""


def test_public_names_are_the_stored_ones() -> None:
    stored, now = STORED.read_text("utf-8").splitlines(), lines()
    if now != stored:
        changed = [each for each in difflib.ndiff(stored, now) if each[0] in "+-"]
        pytest.fail("public names have changed:\n" + "\n".join(changed) + ADVICE, pytrace=False)
