"""Print a script by which a shell completes verbs, flags, collectives and files.

Examples
--------
  eval "$(hpccomm completion bash)"    (a line of ~/.bashrc)
  eval "$(hpccomm completion zsh)"     (a line of ~/.zshrc, behind compinit)
  hpccomm completion bash > ~/.local/share/bash-completion/completions/hpccomm
"""

import argparse
import re

import hpccomm
from hpccomm.calls import policy
from hpccomm.errors import ConfigurationError
from hpccomm.spelling import install_command
from hpccomm.tools import output
from hpccomm.tools.flags import Flag, Parser, one_of, single
from hpccomm.tools.main import VERBS
from hpccomm.tools.perf.collectives import COLLECTIVES

FLAGS = (Flag("{bash,zsh}", one_of(("bash", "zsh"), "shell that is known"), "the shell", "shell"),)

_FILES = re.compile(r"FILE|\.h5|PATH|BASE|NEW|LOG|COMMAND")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    try:
        import shtab
    except ImportError as error:
        raise ConfigurationError(
            f"these scripts are made by shtab, which cannot be loaded ({error}); "
            f"install it: {install_command('completion')}"
        ) from error
    parser = Parser(prog="hpccomm")
    parser.add_argument("--version", action="version", version=hpccomm.__version__)
    verbs = parser.add_subparsers()
    for name in (name for name in VERBS if " " not in name):
        # A shell takes the second word of a verb for an argument, so one parser has the flags of all such verbs.
        own = verbs.add_parser(name, help=VERBS[name].summary, conflict_handler="resolve")
        parts = [verb for verb in VERBS.values() if verb.name.split()[0] == name]
        values = {
            "COLLECTIVE": ["all", *COLLECTIVES, *(verb.name.split()[1] for verb in parts[1:])],
            "--algorithm": policy.NAMES,
        }
        for flag in (flag for verb in parts[::-1] for flag in single(verb.load().FLAGS)):
            action = flag.add(own)
            if flag.metavar == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif _FILES.search(flag.metavar):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif flag.metavar.startswith("{"):
                action.choices = flag.metavar[1:-1].split(",")
            else:
                asked = flag.names[-1] if flag.names else flag.metavar.partition("[")[0]
                action.choices = values.get(asked)
    output.write(shtab.complete(parser, shell=args.shell))
    return 0
