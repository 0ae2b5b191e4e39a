"""The example data of ``appending.py``, for the tests beside it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

APPENDING = Path(__file__).with_name("appending.py")


@pytest.fixture(autouse=True)
def on_the_host_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node0.cluster")


@pytest.fixture(scope="session")
def example() -> ModuleType:
    """``example_info``, ``example_row``, ``example_samples``, and the program that appends."""
    spec = importlib.util.spec_from_file_location("appending", APPENDING)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
