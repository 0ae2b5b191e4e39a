"""The documentation has a picture of every algorithm."""

import re
from pathlib import Path

import pytest

from hpccomm.schedules.algorithms import ALGORITHMS

PAGES = Path(__file__).parents[3] / "docs/explanation/algorithms"


@pytest.mark.parametrize("name", sorted({name for named in ALGORITHMS.values() for name in named}))
def test_each_algorithm_is_drawn_on_a_page(name: str) -> None:
    pages = [page.read_text(encoding="utf-8") for page in PAGES.glob("*.rst")]
    assert any(re.search(rf"^\.\. picture-of:: {name} ", page, re.MULTILINE) for page in pages)
