"""Collective communication under MPI: measured, verified, recorded.

Exit status:
  0    done
  1    done, and a result was wrong
  2    not done: misuse, configuration, results file, communication, full output;
       or done without the damaged parts of a results file
  3    hpccomm ended the job, whose ranks could not go on
  130  interrupted from the keyboard
  141  not done: the reader of standard output has ended (hpccomm show FILE | head)

Examples
--------
  mpiexec -n 4 hpccomm perf all_reduce -b 8 -e 64M -f 2 --output runs.h5
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

import hpccomm
from hpccomm.backends.bootstrap.launch import launched
from hpccomm.errors import CommunicationError, HpccommError, UsageError, did_you_mean
from hpccomm.tools import output
from hpccomm.tools.flag import add_flags
from hpccomm.tools.flags import Parser

VERBS = {
    "perf": "measure and verify collectives, the way nccl-tests does",
    "perf pairs": "measure every pair of ranks, and name the node, rank or pair that is slow",
    "perf memory": "measure the node's memory, by cores and NUMA nodes",
    "perf copy": "measure copies to, from and between the node's GPUs",
    "show": "print a stored run as its table, or what a training's gradients cost",
    "export": "write a stored run as nccl-tests' JSON or CSV, a recording for Perfetto",
    "compare": "say whether runs are slower than others, launch by launch and case by case",
    "import": "add logs of nccl-tests and OSU to a results file",
    "record": "run a program, and record its calls on one clock",
    "simulate": "time collectives on a described cluster, or one like a stored run's, in virtual time",
    "tune": 'measure the table by which algorithm="auto" chooses',
    "doctor": "find faults of a job's nodes: everything outside the program",
    "topo": "show what a node is made of, and what connects it",
    "env": "judge the variables of NCCL, MPI and hpccomm that are set",
    "explain": "say what a log, the dumps of a failed job, or a message mean, and what to do",
    "advise": "say what costs a recorded program time, and what would help, with the predicted gain",
    "replay": "run the communication of a recorded program again, as a benchmark",
    "slurm": "write a batch script for Slurm that runs perf",
    "report": "write stored runs as one page of HTML: charts, verdicts, tables",
    "plot": "draw an algorithm, a stored training, pairs of ranks, or stored runs",
}
"""Each verb, and what it does.

Its module (``_HOMES``) is imported when the verb is used. A module's docstring is the help, ``FLAGS`` are the arguments, and ``run(arguments) -> int`` returns the exit status. One that
takes another verb's command line has ``arranged(words)``, which puts ``--`` between its own flags and that.
"""

_HOMES = {
    "perf": "perf.command",
    "perf pairs": "perf.pairs.command",
    "perf memory": "perf.memory_command",
    "perf copy": "perf.copy_command",
    "show": "runs.show",
    "export": "runs.export",
    "compare": "runs.compare",
    "import": "runs.importing",
    "record": "programs.record",
    "simulate": "simulate.command",
    "tune": "tune.command",
    "doctor": "doctor.command",
    "topo": "doctor.topo",
    "env": "doctor.env",
    "explain": "explain.command",
    "advise": "programs.advise",
    "replay": "programs.replay",
    "slurm": "slurm.command",
    "report": "runs.report",
    "plot": "runs.plot",
}
"""The module of each verb, within `hpccomm.tools`."""

COLLECTIVE = (
    *("perf", "perf pairs", "perf memory", "perf copy"),
    *("replay", "tune", "doctor", "topo", "env", "record"),
)
"""Verbs that are run by all ranks of a job, and let rank 0 speak for all."""

SILENCE = 3.0
"""Seconds that silent ranks live on, so that rank 0 can speak first."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Without the program's name; by default this process's.

    Returns
    -------
    int
        The exit status.
    """
    _open_closed_streams()
    output.take_any_text()
    words = list(sys.argv[1:] if argv is None else argv)
    at = next((at for at, word in enumerate(words) if not word.startswith("-")), len(words))
    if (both := " ".join(words[at : at + 2])) in VERBS:
        words[at : at + 2] = [both]  # a verb of two words
    used = words[at] if at < len(words) else None
    try:
        verb, arguments = _parse(words, at, used)
        status: int = verb.run(arguments)
    except KeyboardInterrupt:
        shutdown = sys.modules.get("hpccomm.backends.bootstrap.shutdown")
        if shutdown is not None and shutdown.installed():
            raise  # uncaught, it ends the other ranks too, with one line from each
        output.warn("hpccomm: interrupted\n")
        status = 130
    except HpccommError as error:
        status = fail(error, collective=used in COLLECTIVE)
    _forget_unwritten()
    return status


def fail(error: HpccommError, *, collective: bool) -> int:
    """Print the error; return the exit status.

    Parameters
    ----------
    error : HpccommError
    collective : bool
        Whether all ranks of the job run the verb: else this may be a process that a rank has started.
    """
    if isinstance(error.__context__, BrokenPipeError):
        return 141
    # Misuse is the same on every rank; what went wrong between ranks is each one's own.
    own = isinstance(error, CommunicationError)
    if own or not collective or output.speaks():
        place = launched()
        rank = f" [rank {place.rank}]" if own and place is not None and place.size > 1 else ""
        output.warn(f"hpccomm: error{rank}: {' '.join(str(error).split())}\n")
    elif "mpi4py.MPI" not in sys.modules:
        # A launcher kills the job at the first process that fails, and MPI, which would hold
        # the ranks together until its end, was not started. Let rank 0 speak first.
        time.sleep(SILENCE)
    return 2


def _open_closed_streams() -> None:
    """Give the null device to standard streams that were closed when the process started.

    Each takes the lowest free descriptor, its own: a results file opened later could take it.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))


def _forget_unwritten() -> None:
    """Keep Python from writing again at exit what a stream has refused."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _parse(words: list[str], at: int, used: str | None) -> tuple[ModuleType, argparse.Namespace]:
    """Import the verb, which is the word `at`; return it and its arguments."""
    parser = Parser(prog="hpccomm", text=__doc__)
    parser.add_argument("--version", action="version", version=f"hpccomm {hpccomm.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, title="verbs")
    parser.refuse_unknown_flags(words[:at])
    if used is not None and used not in VERBS:
        advice = did_you_mean(used, VERBS, f"the verbs are {', '.join(VERBS)}")
        raise UsageError(f"hpccomm has no verb {used!r}; {advice} (hpccomm --help says more)")
    for name, summary in VERBS.items():
        if name != used:
            verbs.add_parser(name, help=summary)
            continue
        home = _HOMES[name]
        module = import_module(f"hpccomm.tools.{home}")
        chosen = verbs.add_parser(name, help=summary, text=module.__doc__)
        chosen.collective = name in COLLECTIVE
        add_flags(chosen, module.FLAGS)
        if hasattr(module, "arranged"):
            words[at + 1 :] = module.arranged(words[at + 1 :])
        chosen.refuse_unknown_flags(words[at + 1 :])
    arguments, more = parser.parse_known_args(words)  # without a verb it raises
    chosen.refuse_words(more)
    return module, arguments
