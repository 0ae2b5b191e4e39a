"""Blocks of code in the pages that are marked as run. The pages say of all others that no test runs them."""

import re
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
MARKED = r"^\.\. code-block:: [\w-]+\n   :class: run\n\n((?:   .*\n|\n)+)"


def run_blocks(page: str) -> list[str]:
    """Return the text of all marked blocks of a page, whose only test runs each of them."""
    found = re.findall(MARKED, (ROOT / page).read_text("utf-8"), re.MULTILINE)
    return [dedent(block).strip("\n") + "\n" for block in found]
