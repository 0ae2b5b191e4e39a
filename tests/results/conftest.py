"""The example data of ``appending.py``, for the tests beside it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import damage
import pytest

APPENDING = Path(__file__).with_name("appending.py")


@pytest.fixture(autouse=True)
def on_the_host_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node0.cluster")


@pytest.fixture(autouse=True)
def apart_in_a_copy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read what may crash a reader in a copy of this process: another one takes 0.4 s to start.

    A test that takes the fixture ``really_apart`` starts one, as users do.
    """
    if "really_apart" not in request.fixturenames:
        monkeypatch.setattr("hpccomm.files.apart.call", damage.forked_afresh)


@pytest.fixture
def really_apart() -> None:
    """See ``apart_in_a_copy``."""


@pytest.fixture(scope="session")
def example() -> ModuleType:
    """``example_info``, ``example_row``, ``example_samples``, and the program that appends."""
    spec = importlib.util.spec_from_file_location("appending", APPENDING)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
