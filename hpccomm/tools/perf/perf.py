"""Measure collectives on host or device arrays as nccl-tests does, and verify their results.

Flags and table are nccl-tests', with its meanings and defaults. One table is printed for each
combination of collective, backend and algorithm. The printed time is the time of a block of
repetitions back to back, divided by their number. Results of timed repetitions are verified: out of
place the last one's, in place those of the first and of a random one.

Combinations of `all` or of a list that do not exist, such as avg on bool or an algorithm on a
collective that lacks it, are skipped, and the header lists them. Requested alone, they are an error.

`perf pairs` measures pairs of ranks, `perf memory` a node's memory, and `perf copy` the links of
its GPUs.

The exit status is 0 if everything is right, 1 if a result is wrong (rank, index, expected and
actual value are on standard error) or a table is slower than required (--min-bw, --expect), and 2 if the
command failed: wrong usage or configuration, a file, a failed communication. It is 4 if a table is slower,
but other processes kept nodes busy, which decides nothing.

Examples
--------
  mpiexec -n 4 hpccomm perf all_reduce -b 8 -e 64M -f 2
  mpiexec -n 4 hpccomm perf all_reduce,all_gather -b 1M -e 16M -i 1M -d double --output runs.h5
  mpiexec -n 4 hpccomm perf all_reduce -b 8 -e 64M -f 4 -d float,half -o sum,max
  mpiexec -n 4 hpccomm perf all -b 0 -e 1M -f 4 -o all -d all
  mpiexec -n 2 hpccomm perf send_recv -b 1 -e 4M -f 2 -a 3 -I 1 --csv latency.csv
  mpiexec -n 8 hpccomm perf all_reduce -b 8 -e 8G -f 2 --backend nccl --algorithm ring,tree,native
  mpiexec -n 2 hpccomm perf all_reduce -b 8 -e 1M -f 8 --ci 2% --budget 60s --output isolated.h5
  hpccomm perf all_reduce -b 8 -e 64M -f 8 --launches 10 --launcher "mpiexec -n 4" --output runs.h5
  mpiexec -n 4 hpccomm perf all_reduce -b 8 -e 64M -f 8 --interleave ring recursive_doubling
  mpiexec -n 8 hpccomm perf all -b 1M -e 1G -f 4 --backend nccl,mpi --output runs.h5
"""

import argparse
import math
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.errors import LaunchError, ResultsError, UsageError
from hpccomm.results.comparison import require_scipy
from hpccomm.runtime.service import Status
from hpccomm.tools import flags as readers
from hpccomm.tools import output
from hpccomm.tools.flags import Flag, Parser, add_flags
from hpccomm.tools.perf import flags
from hpccomm.tools.perf.options import ONLY, Options, Variant
from hpccomm.units import figure

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

# Repeated launches of a measurement (``--launches``). A launch is the unit in which runs are compared.
#
# The placement of ranks, their pages, and the other work of a machine differ more between launches
# than between repetitions within a launch (S. Hunold and A. Carpen-Amarie, "Reproducible MPI
# benchmarking is still not as easy as you think", IEEE TPDS 2016).
# A process that is not a rank starts them.

_GRACE = 20.0
"""Seconds that a launch has to store its rows after this program was asked to end."""


_DONE: dict[int, str] = {
    Status.DONE: "done",
    Status.RAISED: "a result was wrong, or a row too slow",
    Status.UNDECIDED: "undecided: busy",
}
"""The exit statuses of a launch that has measured, with their meanings."""


def launch_command(given: Sequence[str] | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that starts the ranks of a launch.

    Parameters
    ----------
    given : sequence of str or None
        The words of ``--launcher``.
    environ : mapping of str to str
        The environment of this process.

    Raises
    ------
    UsageError
        If no launcher is known.
    """
    if given:
        return tuple(given)
    if "SLURM_JOB_ID" in environ:
        return ("srun",)
    raise UsageError(
        "--launches starts the ranks itself, and this is not a Slurm job with an srun; give "
        "--launcher 'mpiexec -n 4', or another command that starts them"
    )


_OWN = [
    flag
    for flag in flags.FLAGS["sound timing"]
    if flag.takes in ("launches", "launcher", "variants")
]
"""Flags that are not passed to launches."""


def words_of_a_launch(words: Sequence[str], series: str, variant: Variant = ONLY) -> list[str]:
    """Return the arguments of one launch: this command's without ``--launches``, and ``--series``.

    Parameters
    ----------
    words : sequence of str
        Arguments of this command.
    series : str
        Value of ``--series``.
    variant : Variant, optional
        The variant that the launch measures. Its flags stand behind all others, since the last flags count.
    """
    parser = Parser(add_help=False)
    add_flags(parser, _OWN)
    _, others = parser.separated(words)
    end = others.index("--") if "--" in others else len(others)  # flags end there
    return [*others[:end], "--series", series, *variant.flags(), *others[end:]]


def run_launches(
    words: Sequence[str],
    command: Sequence[str],
    launches: int,
    output: Path,
    say: Callable[[str], None],
    variants: tuple[Variant, Variant] | None = None,
) -> int:
    """Start one launch after another. Blocks; only for a process that is not a rank.

    Parameters
    ----------
    words : sequence of str
        The command line behind ``hpccomm``, which starts with ``perf``.
    command : sequence of str
        The command that starts the ranks.
    launches : int
        Number of launches.
    output : Path
        The results file, to which each launch adds a run.
    say : callable
        Prints a line.
    variants : tuple of Variant, optional
        Two variants. Each is launched `launches` times, in pairs in random order; both are compared at the end.

    Returns
    -------
    int
        Exit status: 1 if a launch had wrong results, or was slower than ``--min-bw``.

    Raises
    ------
    LaunchError
        If a launch failed, or left no completed run. The runs of earlier launches are kept.
    KeyboardInterrupt
        If it was interrupted. The runs of earlier launches are kept.
    SystemExit
        If it was sent SIGTERM. The runs of earlier launches are kept.
    """
    name = f"{output.stem}-{secrets.token_hex(4)}"
    status = 0
    draw = random.Random()
    for number in range(1, launches + 1):
        for variant in draw.sample(variants or (ONLY,), len(variants or (ONLY,))):
            which = f"launch {number} of {launches}" + (variant.name and f" of {variant.name}")
            arguments = words_of_a_launch(words, f"{name}:{number}:{launches}", variant)
            ended = _started([*command, *_python(variant), "-m", "hpccomm", *arguments])
            # A launcher also ends with status 1 if it could not start the ranks.
            if ended not in _DONE or not _completed(output, name, number, variant):
                without = " and left no completed run" if ended in _DONE else ""
                raise LaunchError(
                    f"{which} ended with status {ended}{without}; {number - 1} before it are kept in {output} as "
                    f"series {name}; its errors stand above"
                )
            # Wrong results count more than undecided ones.
            status = min(filter(None, (status, ended)), default=0)
            say(f"# {which}: {_DONE[ended]}\n")
    if variants is None:
        for line in summary(output, name):
            say(line)
    else:
        from hpccomm.results.comparison.matching import side
        from hpccomm.results.comparison.verdict import compare, text

        base, new = (side([output], name, variant=each.name) for each in variants)
        say(f"# Series {name} in {output}\n{text(compare(base, new))}")
    return status


def _python(variant: Variant) -> list[str]:
    """Return the command for Python with a variant's variables, which launchers may drop."""
    assigned = [f"{key}={value}" for key, value in variant.environment.items()]
    return [*(["env", *assigned] if assigned else []), sys.executable]


def _completed(output: Path, name: str, number: int, variant: Variant) -> bool:
    """Whether a results file holds a completed run of a launch."""
    launch = {"name": name, "launch": str(number)}
    launch |= {"variant": variant.name} if variant.name else {}
    from hpccomm.results import reader

    return output.exists() and any(
        run.status == "completed" and launch.items() <= run.info.series.items()
        for run in reader.examine(output).runs
    )


def _started(command: Sequence[str]) -> int:
    """Run a launch without its output, and return its status. If this process is asked to end, end the launch too."""
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with subprocess.Popen(command, stdin=DEVNULL, stdout=DEVNULL) as process:
            try:
                return process.wait()
            except (KeyboardInterrupt, SystemExit) as error:
                # The launch stores its rows. The terminal has sent SIGINT to it as well.
                if isinstance(error, SystemExit):
                    process.terminate()
                try:
                    process.wait(_GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
                raise
    except OSError as error:
        raise LaunchError(
            f"{command[0]!r} cannot be started: {error.strerror}; give what starts the ranks by --launcher"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, *_: object) -> NoReturn:
    raise SystemExit(128 + number)


def summary(output: Path, name: str) -> Iterator[str]:
    """Yield the results of a series, as comments: each row's median over launches.

    Parameters
    ----------
    output : Path
        The results file.
    name : str
        Name of the series.

    Raises
    ------
    ResultsError
        If the file cannot be read, or holds no launch of the series.
    """
    from hpccomm.results import reader

    runs = [run for run in reader.examine(output).runs if run.info.series.get("name") == name]
    if not runs:
        raise ResultsError(f"{output} holds no launch of series {name}")
    times: dict[tuple[Any, ...], list[float]] = {}
    for run in runs:
        for row, timing in zip(run.rows, run.timings, strict=True):
            place, time = "yes" if row.in_place else "no", row.time
            if not math.isnan(timing.isolated):
                place, time = f"{place} isolated", timing.isolated
            shown = row.collective, row.algorithm, row.dtype, row.op, row.bytes, place
            times.setdefault((row.case, shown), []).append(time)
    form = "# {:>16} {:>10} {:>6} {:>5} {:>12} {:>8}  {:>9} {:>9} {:>9} {:>7}\n"
    yield f"# Series {name}: {len(runs)} launches in {output}; median over launches, and their spread\n"
    words = ("collective", "algorithm", "type", "redop", "size", "in place")
    yield form.format(*words, "median us", "least", "most", "+- %")
    for (_, shown), each in times.items():
        middle = float(np.median(each))
        spread = float(np.median(np.abs(np.array(each) - middle))) / middle * 100 if middle else 0.0
        figures = [figure(value, 9).strip() for value in (middle, min(each), max(each))]
        yield form.format(*shown, *figures, figure(spread, 7).strip())


def _make_programs(folder: str) -> None:
    """Make the programs with the names of nccl-tests', and end the process: no other argument is needed."""
    from hpccomm.tools.perf import nccl_tests

    if output.speaks():
        output.write("".join(f"{file}\n" for file in nccl_tests.make(readers.file(folder))))
    raise SystemExit(0)


FLAGS = (
    *flags.ARGUMENTS,
    Flag(
        "--install-programs DIR",
        _make_programs,
        "measure nothing: make programs with the names of nccl-tests' in this folder, such as all_reduce_perf",
    ),
)


def run(args: argparse.Namespace) -> int:
    """Measure. Collective: every rank of the job runs it."""
    options = flags.options(args)
    if options.variants is not None:
        require_scipy("--interleave")
    if args.launches:
        return _launches(args, options.variants)
    # Arguments are checked before MPI is started.
    from hpccomm.tools.perf import sweep

    streams = sys.stdout, sys.stderr, output.terminal()
    return sweep.run(partial(_opened, options), options, *streams)


def _launches(args: argparse.Namespace, variants: "tuple[Variant, Variant] | None") -> int:
    """Start whole launches, one after another."""
    place = launched()
    if place is not None and place.size > 1:
        raise UsageError(
            f"--launches starts the ranks itself, and {place.launcher} has started {place.size} already; leave "
            "that launcher out, and give it by --launcher"
        )
    command = launch_command(args.launcher, os.environ)
    return run_launches(sys.argv[1:], command, args.launches, args.output, output.write, variants)


def _opened(options: Options, variant: Variant) -> "Communicator":
    """Return the communicator over a variant's backend. Collective; blocks."""
    import hpccomm

    place, backend, timeout = launched(), variant.backend, options.timeout or None
    with variant.entered():
        comm = hpccomm.new_comm(
            backend, device=options.device, timeout=timeout, name=f"perf-{backend}"
        )
    if place is not None and place.size > comm.size and comm.mpi_comm is None:
        comm.abort()
        raise UsageError(
            f"--backend {backend}: its ranks are in one process, and {place.launcher} "
            f"started {place.size}; leave the launcher out, or name another backend"
        )
    if place is None and comm.size == 1 and backend != "loopback":
        output.warn(
            "hpccomm: one rank measures alone; 'mpiexec -n 2' before the command starts two\n"
        )
    return comm
