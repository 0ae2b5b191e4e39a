"""``python -m tests.chaos``: run seeded faults and report."""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from . import report
from .cases import KINDS, OPERATIONS, Case, deal
from .judging import judge
from .running import Unavailable, find_mpi, run

COMMAND = "python -m tests.chaos"


def ran(case: Case) -> report.Ran:
    """Run one case and judge it."""
    try:
        seen = run(case, find_mpi())
    except Unavailable as why:
        return report.Ran(case, None, None, str(why))
    return report.Ran(case, seen, judge(case, seen))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--cases", type=int, default=40, help="how many (default 40)")
    parser.add_argument("--seed", type=int, default=0, help="the first case's number (default 0)")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="these cases alone")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once (default 1)")
    parser.add_argument("--kind", choices=KINDS, help="of these cases, those of one fault")
    parser.add_argument("--operation", choices=OPERATIONS, help="likewise, of one operation")
    parser.add_argument("--list", action="store_true", help="print the cases and run none")
    parser.add_argument("--verbose", action="store_true", help="print all that a job wrote")
    return parser.parse_args()


def main() -> int:
    """Run the cases; the status is 1 where one fell short, or none can run."""
    asked = arguments()
    seeds = asked.seeds or range(asked.seed, asked.seed + asked.cases)
    dealt = [deal(seed) for seed in seeds]
    cases = [
        case
        for case in dealt
        if asked.kind in (None, case.kind) and asked.operation in (None, case.operation)
    ]
    if asked.list:
        print(*cases, sep="\n")
        return 0
    try:
        mpi = find_mpi()
    except Unavailable as why:
        sys.exit(f"{COMMAND}: {why}")
    began, runs = time.monotonic(), []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for each in pool.map(ran, cases):
            runs.append(each)
            _tell(each, asked)
    print()
    print(report.table(runs))
    print()
    print(report.summary(runs, COMMAND))
    took = time.monotonic() - began
    print(f"seeds {min(seeds)} to {max(seeds)}, {mpi.vendor}, {took:.0f} s")
    return int(any(each.verdict is not None and each.verdict.shortfalls for each in runs))


def _tell(each: report.Ran, asked: argparse.Namespace) -> None:
    if each.verdict is None or each.seen is None:
        print(f"case {each.case.seed}: skipped, {each.skipped}", flush=True)
        return
    if each.verdict.shortfalls:
        print(report.shortfall(each, COMMAND), flush=True)
    else:
        print(f"case {each.case}: as promised, {each.seen.seconds:.1f} s", flush=True)
    if asked.verbose:
        print(each.seen.stdout, each.seen.stderr, json.dumps(each.seen.events, indent=1), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
