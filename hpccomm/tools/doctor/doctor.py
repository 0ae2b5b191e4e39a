"""Find faults of a job's nodes, in all that is outside the program.

The command looks at MPI, limits, GPUs, network and Slurm. It only reads, and does not need root. Checks
that are not possible are skipped, with the reason. Under mpiexec or srun, the command looks at all nodes
and ranks, and rank 0 reports. Start it in the same way as the program.

Examples
--------
  hpccomm doctor
  mpiexec -n 4 hpccomm doctor
  srun hpccomm doctor --json > golden.json
  srun hpccomm doctor --against golden.json
  mpiexec -n 8 hpccomm doctor --nccl --only nccl,gpus
  hpccomm doctor --list

The exit status is 0 if no check fails, with or without warnings. It is 1 if a check fails, and 2 if the
command could not look. Under mpiexec or srun, the status of rank 0 counts.
"""

import argparse
from datetime import datetime
from typing import TYPE_CHECKING, Any

import hpccomm
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.tools import flags, output
from hpccomm.tools.doctor.reading import saved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpccomm.tools.doctor.rule import Diagnosis, Rule


FLAGS = flags.table(__package__)["doctor"]


def run(args: argparse.Namespace) -> int:
    """Gather, judge and report; return the exit status."""
    from hpccomm.tools.doctor import job
    from hpccomm.tools.doctor import rule as judging

    rules = _chosen(args.only or "")
    if args.list:
        if output.speaks():
            lines = [f"{rule.id:28} {rule.severity:5} {rule.question}" for rule in rules]
            output.write("\n".join(lines) + "\n")
        return 0
    golden = None
    if args.against is not None:
        golden = saved(args.against, "doctor", lambda given: next(iter(given["nodes"].values())))
    sources = {source for rule in rules for source in rule.sources}
    with output.watched("looking"):
        trees = job.gather(sources, nccl=args.nccl)
    if not output.speaks():
        if why := job.problem(trees):
            output.warn(f"hpccomm doctor: on {next(iter(trees))}: {why}\n")
        return 0
    diagnoses = judging.judge(trees, rules)
    if golden is not None:
        diagnoses += judging.against(trees, golden, args.against.name, rules)
    status = int(any(each.status == "fail" for each in diagnoses))
    lines = [*judging.head(trees), "", *judging.lines(diagnoses, trees)]
    output.write_found(_document(trees, diagnoses, status), lines, as_json=args.json)
    return status


def _chosen(only: str) -> "Sequence[Rule]":
    """Return the rules of the areas and ids that `only` lists, separated by commas; all rules if it is empty.

    Raises
    ------
    UsageError
        If a word is not an area or a rule.
    """
    from hpccomm.tools.doctor.rules import RULES

    asked = [word for word in only.split(",") if word]
    areas = list(dict.fromkeys(rule.area for rule in RULES))
    known = [*areas, *(rule.id for rule in RULES)]
    for word in asked:
        if word not in known:
            near = did_you_mean(word, known, f"the areas are {', '.join(areas)}")
            raise UsageError(
                f"--only {word!r} is not an area or a rule; {near}; hpccomm doctor --list prints all rules"
            )
    return [rule for rule in RULES if not asked or rule.area in asked or rule.id in asked]


def _document(trees: dict[str, Any], results: "Sequence[Diagnosis]", status: int) -> dict[str, Any]:
    of_rule, of_node = (
        ("id", "question", "remedy", "page"),
        ("status", "nodes", "evidence", "reason"),
    )
    return {
        "schema": 1,
        "hpccomm": hpccomm.__version__,
        "made": datetime.now().astimezone().isoformat(timespec="seconds"),
        "status": status,
        "diagnoses": [
            {name: getattr(each.rule, name) for name in of_rule}
            | {name: getattr(each, name) for name in of_node}
            for each in results
        ],
        "nodes": trees,
    }
