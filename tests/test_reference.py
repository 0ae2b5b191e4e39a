"""``docs/api.rst`` has every public name."""

import re
from pathlib import Path

import hpccomm

PAGE = Path(__file__).parents[1] / "docs" / "api.rst"
DOCUMENTED = set(re.findall(r"^\.\. auto\w+:: (\S+)$", PAGE.read_text("utf-8"), re.MULTILINE))


def test_every_name_of_the_package() -> None:
    assert set(hpccomm.__all__) - {"__version__"} <= DOCUMENTED


def test_every_name_of_the_communicator() -> None:
    public = {name for name in dir(hpccomm.Communicator) if not name.startswith("_")}
    assert {f"Communicator.{name}" for name in public} <= DOCUMENTED
