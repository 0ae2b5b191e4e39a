"""Messages advise to install the libraries of the package's extras."""

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

from alone import python

from hpccomm.spelling import install_command

ROOT = Path(__file__).parents[2]


def test_the_command_names_the_libraries_of_the_extra():
    assert shlex.split(install_command("plot")) == ["pip", "install", *stated()["plot"]]


METADATA = """Metadata-Version: 2.1
Name: hpccomm
Version: 1
Requires-Dist: numpy>=2
Requires-Dist: draw>=2; extra == "plot"
Requires-Dist: plotter; extra == 'plot'
Requires-Dist: x; extra == "plots"
"""


def test_the_libraries_are_read_from_the_metadata_and_a_checkout_installs_its_extra(tmp_path: Path):
    (tmp_path / "hpccomm").symlink_to(ROOT / "hpccomm")
    program = "import hpccomm.spelling as s; print(s.install_command('plot'))"

    def command() -> str:  # without the packages of this environment
        done = python("-S", "-c", program, cwd=tmp_path, env=os.environ | {"PYTHONPATH": ""})
        return done.stdout.strip() or done.stderr

    assert command() == "pip install '.[plot]'"
    (tmp_path / "hpccomm-1.dist-info").mkdir()
    (tmp_path / "hpccomm-1.dist-info" / "METADATA").write_text(METADATA)
    assert command() == "pip install 'draw>=2' plotter"


def stated() -> dict[str, list[str]]:
    """Return the requirements of each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["optional-dependencies"]


def test_trap_no_extra_names_the_project_which_an_index_would_be_asked_for():
    """Whoever installs an extra's list alone, as a script does, asks for each name in it."""
    extras = stated()
    assert [line for lines in extras.values() for line in lines if "hpccomm" in line] == []
    # What stands in several extras is the same in each.
    by_name: dict[str, set[str]] = {}
    for line in {line for lines in extras.values() for line in lines}:
        by_name.setdefault(line.partition(">")[0], set()).add(line)
    assert [lines for lines in by_name.values() if len(lines) > 1] == []
    assert set(extras["test"]) >= {*extras["test-device"], *extras["examples"], *extras["report"]}
    assert set(extras["report"]) >= {*extras["stats"], *extras["plot"]}


def test_trap_no_page_or_script_installs_the_project_from_an_index():
    # The file of a wheel is none of an index's names.
    asking = re.compile(r"pip3? (?:install|download|wheel)\b[^\n`]*?[\s'\"]hpccomm\b(?!-\d)")
    listed = subprocess.run(
        ["git", "ls-files", "*.rst", "*.md", "*.py", "*.sh", "*.sbatch", "*.toml", ".ci/*"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    texts = [path for path in map(ROOT.joinpath, listed) if path != Path(__file__)]
    assert [path for path in texts if asking.search(path.read_text(encoding="utf-8"))] == []
