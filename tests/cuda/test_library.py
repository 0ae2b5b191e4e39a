"""Which CuPy can be used, and the message for any other."""

import os

import cupy
import numpy as np
import pytest
from alone import python

from hpccomm.errors import HpccommError
from hpccomm.memory.cuda import library
from hpccomm.testing import run_ranks


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch):
    """Return what sets the version of CuPy, and has hpccomm look for it once more."""

    def again(version: str) -> str:
        # Nine versions, each in a process of its own, would take ten seconds.
        monkeypatch.setattr(cupy, "__version__", version)
        forget()
        return library.unavailable()

    # What was found is kept for the whole process.
    forget = library._found.cache_clear
    yield again
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize("version", ["13.6.0", "13.0.0rc1", "14.0.0", "9.6.0"])
def test_an_old_cupy_is_refused_by_every_way(look, version):
    """13: no Stream.from_external (its first version: 14). 14.0.0: no float8 (_core/core.pyx, check_support)."""
    assert f"CuPy {version} is too old; pip install 'cupy-cuda12x>=14.0.1'" in look(version)
    for backend in ("loopback", "nccl"):
        with pytest.raises(HpccommError, match="is too old"):
            run_ranks(1, lambda comm: comm.all_reduce(cupy.ones(3, np.float32)), backend=backend)
    for newer in "14.0.1", "14.0.1rc1", "14.2.0", "15.0.0b1", "100.0":
        assert look(newer) == ""


def test_a_cupy_that_warns_where_warnings_are_errors_is_told_of(tmp_path):
    """CuPy 14.2, _environment.py: _detect_duplicate_installation and _preload_libraries."""
    shown = "multiple CuPy packages are installed"
    (tmp_path / "cupy.py").write_text(f"import warnings\nwarnings.warn({shown!r})")
    asked = "from hpccomm.memory.cuda import library; print(library.unavailable())"
    path = f"{tmp_path}:{os.environ['PYTHONPATH']}"
    told = python("-W", "error", "-c", asked, env=os.environ | {"PYTHONPATH": path})
    assert f"CuPy cannot be imported (UserWarning: {shown})" in told.stdout, told.stderr
