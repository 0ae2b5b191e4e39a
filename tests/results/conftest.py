"""The example data of ``appending.py``, for the tests beside it."""

from types import ModuleType

import appending
import pytest


@pytest.fixture(autouse=True)
def on_the_host_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node0.cluster")


@pytest.fixture(scope="session")
def example() -> ModuleType:
    """``example_info``, ``example_row``, ``example_samples``, and the program that appends."""
    return appending
