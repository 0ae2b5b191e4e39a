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
    """Makes and loads copies, and objects of packages that lie beside them.

    Attributes
    ----------
    own : object
        The copy that stands for hpccomm's library.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch, self.own = folder, patch, None
        ctypes.CDLL("libm.so.6")
        lines = Path("/proc/self/maps").read_text().splitlines()
        self._file = next(line.split()[-1] for line in lines if "/libm.so" in line)

    def load(self, name: str) -> ctypes.CDLL:
        """Load a copy by that name, below the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._file, path)
        return ctypes.CDLL(str(path))

    def owned(self, package: str, folder: str) -> object:
        """Return an object of a class of a package that lies in a folder."""
        module = ModuleType(package)
        self.patch.setitem(sys.modules, package, module)  # as if it were installed
        module.__path__ = [str(self.folder / folder)]
        return type("Owner", (), {"__module__": f"{package}.communicator"})()


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Libraries:
    made = Libraries(tmp_path, monkeypatch)
    # There is no NCCL without a wheel of it. A name of its own each time: what is loaded stays.
    monkeypatch.setattr(opening, "FILES", (f"lib{tmp_path.name}.so", "libtorch_cuda"))
    monkeypatch.setattr(opening, "SYMBOL", "cbrt")  # as above
    monkeypatch.setattr(libnccl, "functions", lambda: made.own)  # as above
    return made


def test_which_library_it_is_of(libraries, tmp_path):
    name = f"lib{tmp_path.name}.so.2"
    libraries.own = libraries.load(f"own/{name}")
    (tmp_path / "link").symlink_to(tmp_path / "own")
    of_own = libraries.owned("package_of_own", "link")  # a path that is not the real one
    elsewhere = libraries.owned("package_elsewhere", "nothing")
    for given in (of_own, elsewhere, 1 << 40):
        assert opening.another_library(given) == ""

    libraries.load(f"other/{name}")
    of_other = libraries.owned("package_of_other", "other")
    assert opening.another_library(of_own) == ""
    for given, is_or_may_be in ((of_other, "is"), (elsewhere, "may be"), (1 << 40, "may be")):
        why = opening.another_library(given)
        assert f"nccl= {is_or_may_be} of another NCCL library" in why
        assert f"{tmp_path}/other/{name}, {tmp_path}/own/{name}" in why
        assert "LD_PRELOAD" in why


def test_one_that_is_built_into_pytorch_is_another(libraries, tmp_path):
    libraries.own = libraries.load(f"own/lib{tmp_path.name}.so.2")
    libraries.load("torch/lib/libtorch_cuda.so")
    group = libraries.owned("torch_built", "torch")
    assert "is of another NCCL library" in opening.another_library(group)
    assert "may be of another NCCL library" in opening.another_library(1 << 40)
