"""Collective communication under MPI: measured, verified, recorded.

Exit status:
  0    done
  1    done, and a result was wrong
  2    not done: misuse, configuration, results file, communication, full output;
       or done without the damaged parts of a results file
  3    hpccomm ended the job, whose ranks could not go on
  4    done, and other processes kept nodes so busy that nothing is decided
  130  interrupted from the keyboard
  141  not done: the reader of standard output has ended (hpccomm show FILE | head)

Examples
--------
  mpiexec -n 4 hpccomm perf all_reduce -b 8 -e 64M -f 2 --output runs.h5
"""

import argparse
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import hpccomm
from hpccomm.backends.bootstrap.launch import launched
from hpccomm.errors import CommunicationError, HpccommError, UsageError, did_you_mean
from hpccomm.tools import output
from hpccomm.tools.flags import Parser, add_flags


class Verb(NamedTuple):
    """A verb of the command line: a line of ``verbs.tsv``.

    Its module has the verb's own word as name, and is imported when the verb is used. The module's docstring is the
    help, ``FLAGS`` are the arguments, and ``run(arguments) -> int`` returns the exit status. The module of a verb that
    takes another verb's command line has ``arranged(words)``, which puts ``--`` between its own flags and that.

    Attributes
    ----------
    group : str
        The purpose for which people use it.
    name : str
    module : str
        Where it is, within `hpccomm.tools`.
    ranks : str
        ``"all"`` if all ranks of a job run it, and rank 0 speaks for all, else ``"one"``.
    summary : str
        What the verb does, in a line of the help.
    """

    group: str
    name: str
    module: str
    ranks: str
    summary: str

    def load(self) -> ModuleType:
        """Import the module."""
        return import_module(f"hpccomm.tools.{self.module}")


_LINES = Path(__file__).with_name("verbs.tsv").read_text("utf-8").splitlines()
VERBS = {verb.name: verb for verb in (Verb(*line.split("\t")) for line in _LINES[1:])}

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
        verb, arguments = parse(words, at, used)
        status: int = verb.run(arguments)
    except KeyboardInterrupt:
        shutdown = sys.modules.get("hpccomm.backends.bootstrap.shutdown")
        if shutdown is not None and shutdown.installed():
            raise  # uncaught, it ends the other ranks too, with one line from each
        output.warn("hpccomm: interrupted\n")
        status = 130
    except HpccommError as error:
        status = fail(error, collective=used in VERBS and VERBS[used].ranks == "all")
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
    # All ranks have the same error of usage. An error of communication differs from rank to rank.
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

    Each gets the lowest free descriptor, which is its own. A results file that is opened later cannot take it then.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))


def _forget_unwritten() -> None:
    """Keep Python from writing text again at exit that a stream has refused."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def parse(words: list[str], at: int, used: str | None) -> tuple[ModuleType, argparse.Namespace]:
    """Import the verb, which is the word `at`; return its module and its arguments."""
    parser, parsers = parsers_of([VERBS[used]] if used in VERBS else [])
    parser.refuse_unknown_flags(words[:at])
    if used is None:
        parser.parse_args(words)  # a flag such as --help ends here
        parser.error("the following arguments are required: VERB")
    if used not in VERBS:
        advice = did_you_mean(used, VERBS, f"the verbs are {', '.join(VERBS)}")
        raise UsageError(f"hpccomm has no verb {used!r}; {advice} (hpccomm --help says more)")
    module, chosen = VERBS[used].load(), parsers[used]
    if hasattr(module, "arranged"):
        words[at + 1 :] = module.arranged(words[at + 1 :])
    chosen.refuse_unknown_flags(words[at + 1 :])
    arguments, more = parser.parse_known_args(words)
    chosen.refuse_words(more)
    return module, arguments


def parsers_of(verbs: Iterable[Verb]) -> tuple[Parser, dict[str, Parser]]:
    """Import verbs; return the parser of the command line with these alone, and each verb's own by its name."""
    about, _, rest = (__doc__ or "").partition("\n\n")
    usage = "hpccomm [-h] [--version] VERB ..."
    parser = Parser(prog="hpccomm", usage=usage, text=f"{about}\n\n{_listed()}\n\n{rest}")
    parser.add_argument("--version", action="version", version=f"hpccomm {hpccomm.__version__}")
    within = parser.add_subparsers(prog="hpccomm", dest="verb", help=argparse.SUPPRESS)
    parsers = {}
    for verb in verbs:
        module = verb.load()
        parsers[verb.name] = within.add_parser(verb.name, text=module.__doc__)
        parsers[verb.name].collective = verb.ranks == "all"
        add_flags(parsers[verb.name], module.FLAGS)
    return parser, parsers


def _listed() -> str:
    """Return the verbs by group with their summaries, as wide as the terminal."""
    width = max(40, shutil.get_terminal_size().columns - 2)
    sections = []
    for group, verbs in groupby(VERBS.values(), lambda verb: verb.group):
        lines = [f"{group}:"]
        for verb in verbs:
            begin = f"  {verb.name:<11}  "
            blank = " " * len(begin)
            lines += textwrap.wrap(
                verb.summary, width, initial_indent=begin, subsequent_indent=blank
            )
        sections.append("\n".join(lines))
    return "\n\n".join(sections)
