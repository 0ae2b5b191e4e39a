"""What a message tells to install is what the package's extra lists."""

import configparser
import shlex
from importlib import metadata
from pathlib import Path

import pytest

from hpccomm.extras import install_command

SETUP = Path(__file__).parents[1] / "setup.cfg"


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
