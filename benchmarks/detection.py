"""How often a slowdown of 5 % is found, and how often equal launches are told apart.

Launches of `hpccomm perf` on two hosts in network namespaces (jobs/virtual_cluster.sh, as root): half of them over links
at 95 % of the rate of the others, in alternation. Then `hpccomm compare` judges draws of ten launches a side:

    python benchmarks/detection.py --folder launches
    python benchmarks/detection.py --folder launches --only-draw

docs/how_to/compare.rst has what came of it.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from contest import jobs, program
from contest.program import REQUIRED, Option
from hpccomm.results.comparison.matching import Side
from hpccomm.results.comparison.verdict import FASTER, SLOWER, compare
from hpccomm.results.reader import Run, read

KINDS = {"base": "1gbit", "slow": "950mbit"}
PERF = ("all_reduce", "-b", "2M", "-e", "8M", "-f", "2", "-n", "10", "-w", "3")


def launch(folder: Path, kind: str) -> None:
    """Add a run to the file of a kind."""
    perf = [*jobs.HPCCOMM, "perf", *PERF, "--output", str(folder / f"{kind}.h5")]
    jobs.run([*jobs.cluster(2, 1, KINDS[kind]), *perf])


def verdicts(base: Sequence[Run], new: Sequence[Run]) -> list[str]:
    """Return the verdict on each case of two draws."""
    return [each.verdict for each in compare(Side((*base,), ()), Side((*new,), ())).cases]


def main() -> None:
    """Launch, unless there are enough, and draw."""
    options = {
        "folder": Option(REQUIRED, "where the results files go", Path),
        "launches": Option(40, "of each kind"),
        "comparisons": Option(20, "of each sort"),
        "only-draw": Option(False, "take the launches that are there"),
    }
    args = program.parser(__doc__, options).parse_args()
    args.folder.mkdir(exist_ok=True)
    for number in range(0 if args.only_draw else args.launches):
        for kind in KINDS:
            launch(args.folder, kind)
        print(f"launch {number + 1} of {args.launches} of each kind", flush=True)
    base, slow = (read(args.folder / f"{kind}.h5") for kind in KINDS)
    chance = random.Random(0)
    found = alarms = cases = 0
    for _ in range(args.comparisons):
        drawn = verdicts(chance.sample(base, 10), chance.sample(slow, 10))
        cases = len(drawn)
        found += SLOWER in drawn
        alike = chance.sample(base, 20)
        drawn = verdicts(alike[:10], alike[10:])
        alarms += SLOWER in drawn or FASTER in drawn
    print(f"{len(base)} launches at {KINDS['base']}, {len(slow)} at {KINDS['slow']}; {cases} cases")
    print(f"a slowdown of 5 % was found in {found} of {args.comparisons} comparisons of 10 and 10")
    print(f"equal launches were told apart in {alarms} of {args.comparisons}")


if __name__ == "__main__":
    main()
