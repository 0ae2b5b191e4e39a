"""Messages advise to install the libraries of the package's extras."""

import configparser
import re
import shlex
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from hpccomm.spelling import install_command

SETUP = Path(__file__).parents[2] / "setup.cfg"


def test_the_command_names_the_libraries_of_the_extra():
    stated = configparser.ConfigParser()
    stated.read(SETUP)
    libraries = stated["options.extras_require"]["plot"].split("\n")[1:]
    pip, install, *named = shlex.split(install_command("plot"))
    assert (pip, install) == ("pip", "install")
    assert named == [library.replace(" ", "") for library in libraries]


def test_the_libraries_are_read_from_the_metadata(monkeypatch: pytest.MonkeyPatch):
    lines = [
        "numpy>=2",
        'draw>=2; extra == "plot"',
        "plotter; extra == 'plot'",
        'x; extra == "plots"',
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert install_command("plot") == "pip install 'draw>=2' plotter"


def test_a_checkout_that_is_not_installed_installs_its_extra(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert install_command("plot") == "pip install '.[plot]'"


def stated() -> dict[str, list[str]]:
    """Return the requirements of each extra."""
    file = configparser.ConfigParser()
    file.read(SETUP, encoding="utf-8")
    return {extra: text.split("\n")[1:] for extra, text in file["options.extras_require"].items()}


def test_trap_no_extra_names_the_project_which_an_index_would_be_asked_for():
    """Whoever installs an extra's list alone, as a script does, asks for each name in it."""
    extras = stated()
    assert [line for lines in extras.values() for line in lines if "hpccomm" in line] == []
    # What stands in several extras is the same in each.
    by_name: dict[str, set[str]] = {}
    for line in {line for lines in extras.values() for line in lines}:
        by_name.setdefault(line.partition(" ")[0], set()).add(line)
    assert [lines for lines in by_name.values() if len(lines) > 1] == []
    assert set(extras["test"]) >= {*extras["test-device"], *extras["examples"], *extras["report"]}
    assert set(extras["report"]) >= {*extras["stats"], *extras["plot"]}


def test_trap_no_page_or_script_installs_the_project_from_an_index():
    asking = re.compile(r"pip3? (?:install|download|wheel)\b[^\n`]*?[\s'\"]hpccomm\b")
    root = SETUP.parent
    listed = subprocess.run(
        ["git", "ls-files", "*.rst", "*.md", "*.py", "*.sh", "*.sbatch", "*.toml", ".ci/*"],
        cwd=root, capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    texts = [path for path in map(root.joinpath, listed) if path != Path(__file__)]
    assert [path for path in texts if asking.search(path.read_text(encoding="utf-8"))] == []
