"""The NCCL library of a communicator, in a process with several.

Copies of the C library's mathematics stand for NCCL: a function is looked up in them by its address, as
dlsym gives it. The linker maps a file once, and each copy by itself.
"""

import ctypes
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hpccomm.backends.nccl import libnccl, opening


class Libraries:
    """Makes and loads copies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ctypes.CDLL("libm.so.6")
        lines = Path("/proc/self/maps").read_text().splitlines()
        self._file = next(line.split()[-1] for line in lines if "/libm.so" in line)

    def load(self, name: str) -> ctypes.CDLL:
        """Load a copy by that name, below the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._file, path)
        return ctypes.CDLL(str(path))


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Libraries:
    # A name of its own each time: what is loaded stays.
    monkeypatch.setattr(opening, "FILES", (f"lib{tmp_path.name}.so", "libtorch_cuda"))
    monkeypatch.setattr(opening, "SYMBOL", "cbrt")
    return Libraries(tmp_path)


def owned(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Return an object of a class of a package that lies in a folder."""
    module = ModuleType(package)
    module.__path__ = [str(folder)]
    monkeypatch.setitem(sys.modules, package, module)
    return type("Owner", (), {"__module__": f"{package}.communicator"})()


def test_which_library_it_is_of(libraries, tmp_path, monkeypatch):
    name = f"lib{tmp_path.name}.so.2"
    own = libraries.load(f"own/{name}")
    monkeypatch.setattr(libnccl, "functions", lambda: own)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "own")
    of_own = owned("package_of_own", link, monkeypatch)  # a path that is not the real one
    elsewhere = owned("package_elsewhere", tmp_path / "nothing", monkeypatch)
    for given in (of_own, elsewhere, 1 << 40):
        assert opening.another_library(given) == ""

    libraries.load(f"other/{name}")
    of_other = owned("package_of_other", tmp_path / "other", monkeypatch)
    assert opening.another_library(of_own) == ""
    for given, is_or_may_be in ((of_other, "is"), (elsewhere, "may be"), (1 << 40, "may be")):
        why = opening.another_library(given)
        assert f"nccl= {is_or_may_be} of another NCCL library" in why
        assert f"{tmp_path}/other/{name}, {tmp_path}/own/{name}" in why
        assert "LD_PRELOAD" in why


def test_one_that_is_built_into_pytorch_is_another(libraries, tmp_path, monkeypatch):
    own = libraries.load(f"own/lib{tmp_path.name}.so.2")
    monkeypatch.setattr(libnccl, "functions", lambda: own)
    libraries.load("torch/lib/libtorch_cuda.so")
    group = owned("torch_built", tmp_path / "torch", monkeypatch)
    assert "is of another NCCL library" in opening.another_library(group)
    assert "may be of another NCCL library" in opening.another_library(1 << 40)
