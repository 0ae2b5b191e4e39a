"""Compare the runs of two results files: is the new side slower, faster, or the same, in each case.

The unit is the launch: each completed run of a file is one, as `hpccomm perf ... --launches 10` makes them.
A case is slower if a rank-sum test of the launches' medians says so, after a correction for the number of
cases, by more than the minimum effect. Runs of machines that differ are refused.

The exit status is 0 if no case is slower, 1 if one is slower or has wrong results (with --require-decision
also if one is undecided or untested), and 2 if the command failed.

Examples
--------
  hpccomm compare last_month.h5 today.h5
  hpccomm compare last_month.h5 today.h5 --minimum 5% --junit verdict.xml --json verdict.json
  hpccomm compare runs.h5 runs.h5 --base-runs 1,2,3 --new-runs 4,5,6
  hpccomm compare archive/october archive/november          folders of results files
  hpccomm compare runs.h5 runs.h5 --base-variant ring --new-variant tree
  hpccomm compare runs.h5 runs.h5 --across algorithm=ring:tree
  hpccomm compare 4_ranks.h5 8_ranks.h5 --across ranks
"""

import argparse

from hpccomm.errors import UsageError
from hpccomm.results.comparison import matching, require_scipy, verdict
from hpccomm.results.comparison.matching import ACROSS, METRICS, metric_of
from hpccomm.results.comparison.verdict import Rules, compare
from hpccomm.tools import flags, output
from hpccomm.tools.flags import ANY_MACHINE


def across(text: str) -> tuple[str, tuple[str, str]]:
    """Read what differs on purpose: its name, or ``name=base:new``."""
    name, given, values = text.partition("=")
    base, _, new = values.partition(":")
    if given and not (base and new):
        raise argparse.ArgumentTypeError(f"{text!r} is incomplete; give {name} or {name}=BASE:NEW")
    return flags.one_of(ACROSS, "thing to compare across")(name), (base, new)


_OWN = flags.table(
    __package__,
    {"across": across, "metric": flags.one_of((*METRICS,), "metric")},
    {"across": ", ".join(ACROSS)},
    "compare.toml",
)

FLAGS = (*_OWN["sides"], ANY_MACHINE, *_OWN["verdict"])


def run(args: argparse.Namespace) -> int:
    """Compare; return the exit status."""
    require_scipy("hpccomm compare")
    with output.watched(f"reading {args.base.name} and {args.new.name}"):
        base = matching.side([args.base], args.base_series, args.base_runs, args.base_variant or "")
        new = matching.side([args.new], args.new_series, args.new_runs, args.new_variant or "")
    values = dict(args.across or ())
    if all(a == b for a, b in values.values()) and (twice := matching.on_both_sides(base, new)):
        raise UsageError(
            f"{twice} is on both sides; choose runs by --base-runs and --new-runs, variants of a run by "
            "--base-variant and --new-variant, or values by --across algorithm=ring:tree"
        )
    rules = Rules(args.minimum, args.level, args.measure, values, args.metric or metric_of(values))
    with output.watched("comparing"):
        compared = compare(base, new, rules, any_machine=args.any_machine)
    if args.json is not None:
        output.write_file(args.json, verdict.as_json(compared))
    if args.junit is not None:
        output.write_file(args.junit, verdict.as_junit(compared, f"{args.base} against {args.new}"))
    output.write(verdict.text(compared))
    return 1 if compared.failed or (args.require_decision and not compared.decided) else 0
