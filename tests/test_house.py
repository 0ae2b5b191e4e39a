"""The standing checks of the house name grown numbers, and hold fallen ones."""

from pathlib import Path

import house
import pytest

FILES = {
    "__init__.py": "",
    "low.py": '"""Two\n\nlines."""\n\nclass Step:\n    """One."""\n\n    size = 3  # a comment\n',
    "high.py": "from small.low import Step\n\nclass Plan:\n    first = Step()\n",
    "side.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from small.other import Plan\n",
    "other.py": "import small.side\n\nclass Plan: ...\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_each_number_counts_what_it_says(package: Path) -> None:
    assert house.lines_by_part(package) == {
        "high.py": 3,
        "side.py": 3,
        "low.py": 2,
        "other.py": 2,
        "__init__.py": 0,
    }
    names = house.names_for_several_things(package)
    assert (names.value, names.counted) == (1, ("Plan: small/high.py:3, small/other.py:3",))
    assert house.longest_file(package).counted[0] == "small/low.py: 8"
    groups, modules = house.circles(package)
    assert (groups.value, modules.value) == (1, 2)
    assert groups.counted == ("2: small.other, small.side",), "an import for types counts"


def test_phrases_and_names_that_stop_a_reader_are_counted(tmp_path: Path) -> None:
    package, pages = tmp_path / "small", tmp_path / "docs"
    package.mkdir()
    pages.mkdir()
    (package / "ring.py").write_text(
        '"""A ring, of\nwhich there is none."""\n\nfound = 1\nsize = 2\n'
    )
    (pages / "ring.rst").write_text(
        "There is no link, and no\nlonger any. This is no longer a ring.\n"
    )
    phrases = house.stumbling_phrases(package, pages)
    assert (phrases.value, len(phrases.counted)) == (3, 2)
    assert house.vague_names(package).counted == ("small/ring.py:4: found",)


def test_what_grew_is_named_and_what_fell_is_written_down() -> None:
    limits = {"counts": {"names": 1}, "code_lines": {"bench": 10}}
    assert house.judged([house.Count("names", 1)], {"bench": 9}, limits) == []
    grown = house.judged(
        [house.Count("names", 2, ("Plan", "Step"))], {"bench": 11, "new": 1}, limits
    )
    assert len(grown) == 3
    assert "names is 2; it may be 1" in grown[0]
    assert "Step" in grown[0]
    assert "hpccomm/bench has 11 code lines; its budget is 10" in grown[1]
    loose = limits | {"words": {"names": 1}}
    assert house.judged([house.Count("names", 0)], {}, loose | {"code_lines": {}}) == []
    fallen = house.Count("names", 0)
    (gone,) = house.judged([], {}, {"counts": {}, "code_lines": {"bench": 10}})
    assert "hpccomm/bench is gone" in gone
    (fell,) = house.judged([fallen], {"bench": 9}, limits)
    assert "--tighten" in fell
    text = '# why\nnames = 1\nmore_names = 1\n"a.py" = 3\n'
    tight = '# why\nnames = 0\nmore_names = 1\n"a.py" = 2\n'
    assert house.tightened(text, [fallen], {"a.py": 2}) == tight
    assert house.tightened(text, [house.Count("names", 2)], {"a.py": 4}) == text
