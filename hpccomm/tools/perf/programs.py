"""Programs with the names of nccl-tests', which measure by hpccomm.

`hpccomm.tools.perf.command` installs them; each starts `hpccomm.tools.perf.nccl_tests`.
"""

import shlex
import stat
import sys
from importlib import metadata
from pathlib import Path

import hpccomm
from hpccomm.errors import ResultsError

PROGRAMS: dict[str, str] = {
    "all_reduce_perf": "all_reduce",
    "all_gather_perf": "all_gather",
    "alltoall_perf": "all_to_all",
    "broadcast_perf": "broadcast",
    "gather_perf": "gather",
    "hypercube_perf": "hypercube",
    "reduce_perf": "reduce",
    "reduce_scatter_perf": "reduce_scatter",
    "scatter_perf": "scatter",
    "sendrecv_perf": "send_recv",
}
"""nccl-tests' programs, and what each measures."""

RUN_BY = "hpccomm.tools.perf.nccl_tests"
"""The module that the programs run, with their name and arguments."""


def make(folder: Path) -> list[Path]:
    """Write the programs into a folder, which is made if it is not there.

    Returns
    -------
    list of Path
        The programs.

    Raises
    ------
    ResultsError
        If one cannot be written, or another file has its name.
    """
    programs = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in PROGRAMS:
            file = folder / name
            text = _program(name)
            if file.is_symlink() or (
                file.exists() and _MARK not in file.read_text(errors="replace")
            ):
                raise ResultsError(
                    f"{file} is there already, and not from hpccomm; name another folder"
                )
            # The path of the interpreter may be any bytes.
            file.write_text(text, encoding="utf-8", errors="surrogateescape")
            file.chmod(file.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
            programs.append(file)
    except OSError as error:
        raise ResultsError(
            f"cannot write to {folder}: {error.strerror}; name another folder"
        ) from error
    return programs


_MARK = "of nccl-tests, by hpccomm perf"


def _program(name: str) -> str:
    """Return the text of a program: a shell's, as the path of an interpreter may be too long for a first line."""
    lines = ["#!/bin/sh", f"# {name} {_MARK}"]
    try:
        metadata.distribution("hpccomm")
    except metadata.PackageNotFoundError:  # from a checkout that is not installed
        home = shlex.quote(str(Path(hpccomm.__file__).parents[1]))
        lines.append(f'export PYTHONPATH={home}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    lines.append(f'exec {shlex.quote(sys.executable)} -m {RUN_BY} {name} "$@"')
    return "".join(f"{line}\n" for line in lines)
