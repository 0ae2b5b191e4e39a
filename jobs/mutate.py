"""Changes one token of hpccomm at a time, and tells the changes that the tests nearest to it do not see.

Cosmic Ray makes the changes, coverage.py says which tests reach a line. Started by ``jobs/mutate.sh``.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import SimpleQueue
from pathlib import Path
from typing import NamedTuple

import cosmic_ray.plugins
import coverage
import pytest
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_item import MutationSpec

PACKAGES = (
    "calls",
    "communicator",
    "contracts",
    "gradients",
    "memory",
    "results",
    "runtime",
    "schedules",
    "tools/explain",
    "tools/programs",
    "tools/runs",
    "tools/simulate",
)
"""Folders below ``hpccomm/`` that tests without a GPU reach best."""

OTHER_STAGES = ("mpi", "cuda", "cluster")
"""Folders of tests that do not run in one process: jobs/test.sh starts them in other ways."""

CHANGES_NOTHING = ("core/ReplaceBinaryOperator_BitOr",)
"""Changes that Python does not evaluate: ``X | None`` stands in annotations."""

SETTINGS = """
[run]
source = {tree}/hpccomm
data_file = {data}
parallel = true
context = ${{TEST_THAT_RUNS-}}
disable_warnings = no-data-collected, module-not-measured, module-not-imported
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Say which test runs, to coverage.py here and in the processes that the test starts."""
    os.environ["TEST_THAT_RUNS"] = name = test_of(item.nodeid)
    if (measuring := coverage.Coverage.current()) is not None:
        measuring.switch_context(name)
    return (yield)


def test_of(case: str) -> str:
    """Return the name of a test without its parameters."""
    return case.partition("[")[0]


class Tests(NamedTuple):
    """What a run of all tests told."""

    seconds: dict[str, float]
    """Of each test that passed, with all its cases, by its name."""
    reached: coverage.CoverageData

    def near(self, folder: str, path: str, line: int, most: float) -> list[str]:
        """Return the tests that reach a line, or its file where only the import reaches the line.

        Those in `folder` and the quick ones come first, as many as take `most` seconds.
        """
        lines = self.reached.contexts_by_lineno(path)
        names = set(lines.get(line, ())) & self.seconds.keys()
        if not names and line in lines:
            names = {name for each in lines.values() for name in each} & self.seconds.keys()
        chosen, left = [], most
        for name in sorted(
            names, key=lambda name: (not name.startswith(folder), self.seconds[name])
        ):
            left -= self.seconds[name]
            if chosen and left < 0:
                break
            chosen.append(name)
        return chosen


class Outcome(NamedTuple):
    """What became of one change."""

    package: str
    where: str
    change: str
    seen: str
    """``killed``, ``survived``, or ``no test`` where none reaches the line."""


def positions(path: Path) -> Iterator[MutationSpec]:
    """Yield every change of one token that Cosmic Ray knows for a file."""
    tree = get_ast_from_path(path)
    for name in sorted(cosmic_ray.plugins.operator_names()):
        operator = cosmic_ray.plugins.get_operator(name)
        if operator.arguments() or name.startswith(CHANGES_NOTHING):
            continue
        found = (each for node in ast_nodes(tree) for each in operator().mutation_positions(node))
        for occurrence, (start, end) in enumerate(found):
            yield MutationSpec(path, name, occurrence, start, end)


def draw(package: Path, count: int, seed: int) -> list[MutationSpec]:
    """Return changes at `count` places: the same ones as long as their lines stay the same."""
    places = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        lines = path.read_text().splitlines()
        for spec in positions(path):
            line = lines[spec.start_pos[0] - 1]
            places[f"{seed} {path.name} {line} {spec.start_pos[1]}"].append(spec)

    def number(text: str) -> int:
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])

    drawn = sorted(places, key=number)[:count]
    return [places[place][number(place + " operator") % len(places[place])] for place in drawn]


def run_all(tree: Path, folder: Path, tests: list[str]) -> Tests:
    """Run tests of a checkout, and note which lines of hpccomm each reaches."""
    settings, data, seconds = folder / "coverage", folder / "reached", folder / "seconds"
    settings.write_text(SETTINGS.format(tree=tree, data=data))
    environment = {
        **os.environ,
        "COVERAGE_PROCESS_START": str(settings),
        "PYTHONPATH": f"{tree}:{Path(__file__).parent}",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutate", "-p", "no:cacheprovider"]
    command += ["-n", f"{cores() + 1}", "--dist", "worksteal", f"--seconds={seconds}", *tests]
    command += [f"--ignore=tests/{name}" for name in OTHER_STAGES]
    failures = folder / "failures"
    subprocess.run([*command, f"--failures={failures}"], cwd=tree, env=environment, check=False)
    measured = coverage.Coverage(data_file=str(data), config_file=str(settings))
    measured.combine([str(folder)])
    failed = {test_of(line.partition(": ")[0]) for line in failures.read_text().splitlines()}
    took: dict[str, float] = defaultdict(float)
    for line in seconds.read_text().splitlines():
        duration, case = line.split(maxsplit=1)
        took[test_of(case)] += float(duration)
    passed = {test: each for test, each in took.items() if test not in failed}
    return Tests(passed, measured.get_data())


def cores() -> int:
    """Return how many processes may run side by side."""
    return len(os.sched_getaffinity(0))


def begin(trees: "SimpleQueue[Path]") -> None:
    """Work in a checkout of this process's own."""
    tree = trees.get()
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)


def judge(package: str, spec: MutationSpec, tests: list[str], seconds: float) -> Outcome:
    """Make one change, and run the tests that are nearest to it."""
    where = f"{spec.module_path}:{spec.start_pos[0]}"
    if not tests:
        return Outcome(package, where, spec.operator_name, "no test")
    # Ids of tests are long, and a command line is not.
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
        names.write("\n".join(tests))
        names.flush()
        command = f"{sys.executable} -m pytest -x -q -p no:cacheprovider @{names.name}"
        result = mutate_and_test([spec], command, 60 + 5 * seconds)
    kept = [line for line in (result.diff or "").splitlines() if line[:1] in "+-"]
    change = " → ".join(line[1:].strip() for line in kept if line[:3] not in ("+++", "---"))
    return Outcome(package, where, change, result.test_outcome.value if result.test_outcome else "")


def table(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield the lines of a table of packages, and of one of the changes that no test saw."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for each in outcomes:
        seen[each.package][each.seen] += 1
        seen["all"][each.seen] += 1
    yield from ("| package | changes | seen | survived | no test |", "|---|---|---|---|---|")
    for package in [*sorted(seen.keys() - {"all"}), "all"]:
        found = seen[package]
        missed, none = found["survived"], found["no test"]
        yield f"| {package} | {found.total()} | {found.total() - missed - none} | {missed} | {none} |"
    yield ""
    for each in sorted(outcomes):
        if each.seen in ("survived", "no test"):
            yield f"{each.where}: {each.seen}: {each.change}"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="mutate.sh", description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES, help="folders below hpccomm/")
    parser.add_argument("--count", type=int, default=15, help="changes in each package")
    parser.add_argument("--seed", type=int, default=0, help="which changes are drawn")
    parser.add_argument("--seconds", type=float, default=30, help="of tests for one change")
    parser.add_argument("--commit", default="HEAD", help="what is changed and tested")
    parser.add_argument(
        "--tests", nargs="+", default=["tests"], help="what runs, without MPI's own"
    )
    parser.add_argument("--output", type=Path, default=Path("build/mutants.txt"))
    return parser.parse_args()


def main() -> None:
    """Draw changes, run tests, print the table."""
    asked = arguments()
    repository = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(prefix="mutate-") as name:
        folder = Path(name)
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(cores()):
            tree = folder / f"tree-{number}"
            subprocess.run(["git", "clone", "-q", "--shared", repository, tree], check=True)
            subprocess.run(["git", "checkout", "-q", asked.commit], cwd=tree, check=True)
            trees.put(tree)
        first = folder / "tree-0"
        os.chdir(first)
        tests = run_all(first, folder, asked.tests)
        with ProcessPoolExecutor(cores(), initializer=begin, initargs=(trees,)) as pool:
            running = []
            for package in asked.packages:
                for spec in draw(Path("hpccomm", package), asked.count, asked.seed):
                    near = tests.near(
                        f"tests/{package}/",
                        str(first / spec.module_path),
                        spec.start_pos[0],
                        asked.seconds,
                    )
                    seconds = sum(tests.seconds[name] for name in near)
                    running.append(pool.submit(judge, package, spec, near, seconds))
            outcomes = [each.result() for each in running]
    lines = list(table(outcomes))
    output = repository / asked.output
    output.parent.mkdir(exist_ok=True)
    output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
