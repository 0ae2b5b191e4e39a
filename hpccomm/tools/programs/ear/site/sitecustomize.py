"""Waits until the program imports ``mpi4py.MPI``, and has its calls recorded from there on.

Python imports this module when it starts, as ``hpccomm record`` has put the folder before all others. A
``sitecustomize`` of the site's own is imported as well. A program that a recorded one starts finds the folder too, but no
file to record to.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType


class _Finder(MetaPathFinder):
    """Lets the other finders find mpi4py, and acts when its module has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in ("mpi4py", "mpi4py.MPI"):
            return None
        sys.meta_path.remove(self)
        spec = None
        try:
            spec = find_spec(name)
        finally:
            if name == "mpi4py" or spec is None:
                sys.meta_path.insert(0, self)
        return spec and _then(spec, self._heard)

    def _heard(self, module: ModuleType) -> None:
        if module.__name__ == "mpi4py":  # which has put a finder of its own before this one
            sys.meta_path.remove(self)
            sys.meta_path.insert(0, self)
            return
        try:
            from hpccomm.tools.programs.ear.classes import listen

            listen(module)
        except Exception as error:  # noqa: BLE001 (the program goes on without it)
            sys.stderr.write(f"hpccomm: the program is not recorded: {sys.executable}: {error}\n")


def _then(spec: ModuleSpec, act: Callable[[ModuleType], None]) -> ModuleSpec:
    """Have `act` called with the module once it has been executed."""
    loader = spec.loader
    assert loader is not None
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        act(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def _chain() -> None:
    """Import the site's own ``sitecustomize``, if there is one."""
    here = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120 (few modules are loaded yet)
    others = [each for each in sys.path if os.path.realpath(each or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if os.environ.get("HPCCOMM_RECORDING") or os.environ.get("HPCCOMM_RECORD_TIMEOUT"):
    sys.meta_path.insert(0, _Finder())
    with suppress(OSError):  # it may be closed
        stderr = os.dup(2)
        """Standard error as it was before a framework of tests redirected it."""
_chain()
