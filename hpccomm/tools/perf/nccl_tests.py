"""Programs with the names of those of nccl-tests, which run hpccomm: ``all_reduce_perf -b 8 -e 1G -f 2 -g 1``.

``hpccomm perf --install-programs DIR`` writes them by `make`. Each calls `main`, which runs `hpccomm.tools.perf.perf`.
Table, JSON and exit status are those of nccl-tests, so that programs that read them work.
"""

import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import hpccomm
from hpccomm.backends.bootstrap import mpi
from hpccomm.backends.bootstrap.launch import OPEN_MPI, Launch, launched
from hpccomm.contracts.collectives import ALIASES, OF_NCCL_TESTS
from hpccomm.errors import BackendUnavailable, ResultsError, UsageError, did_you_mean
from hpccomm.results.files import os_errors_as
from hpccomm.tools import output
from hpccomm.tools.flags import Flag, Parser, add_flags, integer

_NAMES = {name: alias for alias, name in ALIASES.items()}

PROGRAMS: dict[str, str] = {
    f"{_NAMES.get(name, name)}_perf": name for name in OF_NCCL_TESTS if name != "all_to_all_v"
}
"""The programs of nccl-tests, and the collective that each measures."""

RUN_BY = "hpccomm.tools.perf.nccl_tests"
"""The module that the programs run, with their name and arguments."""


def make(folder: Path) -> list[Path]:
    """Write the programs into a folder, which is made if it does not exist.

    Returns
    -------
    list of Path
        The programs.

    Raises
    ------
    ResultsError
        If a program cannot be written, or another file has its name.
    """
    programs = []
    with os_errors_as(folder, "write to"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in PROGRAMS:
            file, text = folder / name, _program(name)
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
    return programs


_MARK = "of nccl-tests, by hpccomm perf"


def _program(name: str) -> str:
    """Return the text of a program: a shell script, since the interpreter's path may be too long for a first line."""
    lines = ["#!/bin/sh", f"# {name} {_MARK}"]
    try:
        metadata.distribution("hpccomm")
    except metadata.PackageNotFoundError:  # from a checkout that is not installed
        home = shlex.quote(str(Path(hpccomm.__file__).parents[1]))
        lines.append(f'export PYTHONPATH={home}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    lines.append(f'exec {shlex.quote(sys.executable)} -m {RUN_BY} {name} "$@"')
    return "".join(f"{line}\n" for line in lines)


DEVICE, MASK = "NCCL_TESTS_DEVICE", "NCCL_TESTS_SPLIT_MASK"

VARIABLES: Mapping[str, str] = {
    "NCCL_TESTS_MIN_BW": "--min-bw={}",
    DEVICE: "--device={}",
    "NCCL_TESTS_SPLIT": "--split={}",
    MASK: "--split=AND 0x{}",
}
"""The variables of nccl-tests, and the flag for each with its value. If two set the same flag, the last counts."""

OF_ALL_TO_ALL_V = ("SPREAD", "MATRIX_FILE", "MATRIX_SCALE", "PRINT_SUMMARY")
"""Suffixes of the variables that only ``alltoallv_perf`` reads; it is not among the programs."""

_OF_A_JOB = ("PMIX_", "PMI_", "OMPI_", "PRTE_", "HYDRA_", "MPI_LOCAL", "SLURM_")
"""Prefixes of the variables that tell a launcher that it runs inside a job."""

_OF_A_USER = ("OMPI_MCA_", "OMPI_ALLOW_", "PRTE_MCA_", "SLURM_CLUSTER_", "SLURM_JOB_ID")


def main(words: Sequence[str] | None = None) -> int:
    """Measure as a program of nccl-tests does; return the exit status.

    Parameters
    ----------
    words : sequence of str, optional
        Name of the program and its arguments; by default those of this process.
    """
    from hpccomm.tools.main import fail, main

    name, *rest = sys.argv[1:] if words is None else words
    place = launched()
    try:
        ranks, rest = _ranks(rest)
        command = [sys.executable, "-m", RUN_BY, name, *rest]
        if ranks > 1 and place is not None and place.size > 1:
            raise UsageError(
                f"{name}: -t times -g is {ranks} on each of {place.size} processes, and a rank is a process here; "
                f"start all: {_line(place, ranks, os.environ, command)}"
            )
        if ranks > 1:
            command = [*launch_command(ranks, os.environ, command), *command]
            os.execvpe(command[0], command, launch_environment(os.environ))
    except (BackendUnavailable, UsageError) as error:
        return fail(error, collective=True)
    if place is None or place.rank == 0:
        for line in _unknown(os.environ):
            output.warn(line)
    flags = flags_for(os.environ, 0 if place is None else place.rank)
    return main(["perf", PROGRAMS[name], *flags, *rest])


_RANKS = (
    Flag("-t --nthreads N 1", integer(1), "threads of a process"),
    Flag("-g --ngpus N 1", integer(1), "devices of a thread"),
)


def _ranks(words: Sequence[str]) -> tuple[int, list[str]]:
    """Return the number of ranks of a process, threads times devices in nccl-tests, and the other arguments."""
    parser = Parser(prog="perf", add_help=False)
    add_flags(parser, _RANKS)
    known, rest = parser.parse_known_args(words)
    return known.nthreads * known.ngpus, rest


def launch_command(ranks: int, environ: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Return the command that starts ranks on this node: a launcher beside this Python, or in PATH.

    Raises
    ------
    BackendUnavailable
        If there is no launcher.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec", path=environ.get("PATH"))
    if mpiexec is not None:
        return [mpiexec, "-n", str(ranks)]
    remedy = "install an MPI library, or start the ranks with its launcher"
    if "SLURM_JOB_ID" in environ:
        remedy = f"start all: {_line(None, ranks, environ, command)}"
    raise BackendUnavailable(
        f"-g and -t ask for {ranks} ranks, and no mpiexec is there to start them; {remedy}"
    )


def _line(
    place: Launch | None, ranks: int, environ: Mapping[str, str], command: Sequence[str]
) -> str:
    """Return a shell command that starts several ranks in place of each process."""
    total = ranks * (1 if place is None else place.size)
    step = environ.get("SLURM_STEP_NUM_TASKS")
    # srun may have started them by the protocol of MPICH.
    srun = place is None or (place.launcher != OPEN_MPI and step == str(place.size))
    words = ["mpiexec", "-n", str(total)]
    if srun and "SLURM_JOB_ID" in environ:
        try:
            protocol = "pmix" if mpi.vendor(mpi.load()).startswith("Open MPI") else "pmi2"
        except BackendUnavailable:
            protocol = "pmix"
        # The job has fewer tasks, and this step has its cores.
        words = ["srun", f"--mpi={protocol}", "--overlap", "--overcommit", f"--ntasks={total}"]
        each, more = divmod(total, int(environ.get("SLURM_STEP_NUM_NODES", 1)))
        words += [] if more else [f"--ntasks-per-node={each}"]
    return shlex.join([*words, *command])


def launch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a launcher that starts ranks on this node, without the variables of a job around it.

    With these, Open MPI's launcher finds one slot in a batch job of one task, and MPICH's asks Slurm for a step.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name.startswith(_OF_A_USER) or not name.startswith(_OF_A_JOB)
    }
    # As with nccl-tests, there may be fewer cores than ranks.
    kept.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
    kept.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
    if kept.get(DEVICE, "").strip().isdecimal():
        kept[DEVICE] = f"{kept[DEVICE].strip()}+"  # the device of the first rank
    return kept


def flags_for(environ: Mapping[str, str], rank: int) -> list[str]:
    """Return the flags that nccl-tests' variables ask for."""
    flags = []
    for name, form in VARIABLES.items():
        value = environ.get(name, "").strip()
        if name == MASK:  # base 16 with or without its sign
            value = re.sub("^0x", "", value, flags=re.IGNORECASE)
        if name == DEVICE and value.endswith("+"):
            value = str(int(value[:-1]) + rank)
        if value and (name, value) != (DEVICE, "-1"):
            flags.append(form.format(value))
    return flags


def _unknown(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable that looks like one of nccl-tests but is not."""
    known = (*VARIABLES, *(f"NCCL_TESTS_ALLTOALLV_{end}" for end in OF_ALL_TO_ALL_V))
    for name in sorted(environ):
        if name.startswith("NCCL_TESTS_") and name not in known:
            advice = did_you_mean(name, known, f"its variables are {', '.join(known)}")
            yield f"hpccomm: {name} is not a variable of nccl-tests and has no effect; {advice}\n"


if __name__ == "__main__":
    sys.exit(main())
