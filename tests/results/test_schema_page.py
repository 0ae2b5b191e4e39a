"""``docs/results.rst`` says what ``hpccomm/results/schema.py`` says."""

from pathlib import Path

import pytest

from hpccomm.results import schema

PAGE = Path(__file__).parents[2] / "docs" / "results.rst"


def rows_of(table):
    stored = table if isinstance(table, tuple) else schema.columns(table)
    return [(column.name, column.kind, column.unit, column.meaning) for column in stored]


@pytest.mark.parametrize(
    "table",
    [
        schema.RunInfo,
        schema.Config,
        schema.RankInfo,
        schema.DeviceInfo,
        schema.Row,
        schema.LOCATION,
        schema.STATE,
    ],
)
def test_the_page_has_every_field(table):
    expected = ".. list-table::\n   :header-rows: 1\n\n"
    for name, kind, unit, meaning in [("name", "type", "unit", "meaning"), *rows_of(table)]:
        heading = name == "name"
        cells = [name, kind] if heading else [f"``{name}``", f"``{kind}``"]
        lines = ["   * - " + cells[0], *("     - " + cell for cell in (cells[1], unit, meaning))]
        expected += "".join(line.rstrip() + "\n" for line in lines)
    assert expected + "\n" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("names", [schema.ENVIRONMENT, schema.SLURM])
def test_the_page_has_the_allow_lists(names):
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert ", ".join(f"``{name}``" for name in names) in text


def test_the_page_has_the_version():
    text = PAGE.read_text(encoding="utf-8")
    assert f"``schema_version`` = {schema.SCHEMA_VERSION}" in text
    assert f'``format`` = ``"{schema.FORMAT}"``' in text
