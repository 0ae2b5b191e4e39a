"""``docs/reference/results.rst`` agrees with ``hpccomm/results/schema.py``."""

from pathlib import Path

import pytest

from hpccomm.results import schema
from hpccomm.results.files import FORMAT, SCHEMA_VERSION

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "results.rst"


@pytest.mark.parametrize("names", [schema.ENVIRONMENT, schema.SLURM])
def test_the_page_has_the_allow_lists(names):
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert ", ".join(f"``{name}``" for name in names) in text


def test_the_page_has_the_version():
    text = PAGE.read_text(encoding="utf-8")
    assert f"``schema_version`` = {SCHEMA_VERSION}" in text
    assert f'``format`` = ``"{FORMAT}"``' in text
