"""The options of ``hpccomm perf``, read as the command reads them."""

import argparse
from contextlib import nullcontext

from hpccomm.tools.flags import add_flags
from hpccomm.tools.perf import flags
from hpccomm.tools.perf.options import Options


def options(*words: object) -> Options:
    """Return the options that words of a command line ask for."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser, flags.ARGUMENTS)
    return flags.options(parser.parse_args([*map(str, words)]))


def stays_open(comm):
    """Return what opens a communicator of every backend: one that is open already, and that stays open."""
    return lambda _variant: nullcontext(comm)
