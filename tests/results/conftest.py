"""The host of the example data of ``appending.py``, and a small disk."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def on_the_host_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether a writer lives is asked on the host that it was on, and what is shown of the example names that.
    monkeypatch.setattr("socket.gethostname", lambda: "node0.cluster")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)
