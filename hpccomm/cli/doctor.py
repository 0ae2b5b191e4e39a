"""``hpccomm doctor``: the faults of the nodes, with remedies."""

import argparse
import json
import platform
from typing import Any

from hpccomm.cli import output
from hpccomm.errors import UsageError, did_you_mean

DESCRIPTION = """\
Look for what is wrong with the nodes of a job, outside the program: MPI, limits, GPUs, network, Slurm. It
only reads, and needs no root. What it cannot look at it skips, with the reason. Under mpiexec or srun all
nodes are looked at, and rank 0 reports."""

EXAMPLES = """\
examples:
  hpccomm doctor
  mpiexec -n 4 hpccomm doctor
  srun --ntasks-per-node=1 hpccomm doctor --json > golden.json
  hpccomm doctor --only limits,mpi.binding
  hpccomm doctor --list

Exit status: 0 if nothing fails (warnings are printed), 1 if something does, 2 if it could not look.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("--json", action="store_true", help="print JSON for scripts: the facts and the diagnoses")
    add("--only", default="", metavar="AREA|ID,...", help="only these areas, or these rules")
    add("--list", action="store_true", help="list the rules, and look at nothing")


def run(args: argparse.Namespace) -> int:
    """Gather, judge and report; return the exit status."""
    from hpccomm.doctor import facts, judge, words

    rules = chosen(args.only)
    if args.list:
        lines = [f"{rule.id:28} {rule.severity:5} {rule.question}" for rule in rules]
        output.write("\n".join(lines) + "\n")
        return 0
    sources = {source for rule in rules for source in rule.sources}
    trees = {platform.node(): facts.gather(sources)}
    found = judge.judge(trees, rules)
    status = int(any(each.status == "fail" for each in found))
    if args.json:
        output.write(json.dumps(_document(trees, found, status), indent=1) + "\n")
    else:
        output.write("\n".join(words.lines(found, len(trees))) + "\n")
    return status


def chosen(only: str) -> tuple[Any, ...]:
    """Return the rules that are asked for.

    Raises
    ------
    UsageError
        If a word is neither an area nor a rule.
    """
    from hpccomm.doctor.rules import RULES

    words = [word for word in only.split(",") if word]
    areas = dict.fromkeys(rule.area for rule in RULES)
    for word in words:
        if word not in areas and all(word != rule.id for rule in RULES):
            near = did_you_mean(
                word, [*areas, *(rule.id for rule in RULES)], f"the areas are {', '.join(areas)}"
            )
            raise UsageError(
                f"--only {word!r} is neither an area nor a rule; {near} (--list has all)"
            )
    return tuple(rule for rule in RULES if not words or rule.area in words or rule.id in words)


def _document(trees: dict[str, Any], found: list[Any], status: int) -> dict[str, Any]:
    return {
        "status": status,
        "diagnoses": [
            {
                "id": each.rule.id,
                "question": each.rule.question,
                "status": each.status,
                "nodes": each.nodes,
                "evidence": each.evidence,
                "reason": each.reason,
                "remedy": each.rule.remedy,
                "page": each.rule.page,
            }
            for each in found
        ],
        "nodes": trees,
    }
