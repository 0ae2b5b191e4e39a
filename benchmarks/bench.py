"""Whether hpccomm keeps what its documentation promises of its speed. ``jobs/bench.sh`` starts it.

Measures every figure of ``benchmarks/promises.toml`` beside its peer, in turns on one machine, and prints
a line for each: whether the promise is kept, the figure, the bound, and the times behind it. A figure that
falls short is measured once more, and counts if it falls short again.

With ``--against DIR`` the hpccomm of another checkout is measured by the same commands right after this
one's. A figure that is worse by more than a tenth, and for which hpccomm took longer by more than a tenth,
both twice in a row, falls short as well.

The run is stored as JSON under ``results/bench/``, or where ``--output`` says. Exit status: 0; 1 if a
promise fell short twice in a row; 2 if something could not be measured.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from contest import jobs, program
from contest.jobs import CHECKOUT, UNAVAILABLE, machine
from contest.program import Option
from contest.promises import FILE, Figure, Group, Promise, figures, promises

TOLERANCE = 0.1
"""By which a figure may be worse than that of another checkout: as much as launches differ."""
PATIENCE = 240.0
"""Seconds after which a command is stopped."""


class CannotMeasure(Exception):
    """A command did not give its figures."""


class Unavailable(CannotMeasure):
    """A command needs what this machine does not allow."""


@dataclass(slots=True)
class Line:
    """The result for one promise: a figure for each try, and the figures of the other checkout."""

    promise: Promise
    tries: list[Figure] = field(default_factory=list)
    others: list[Figure] = field(default_factory=list)
    skipped: str = ""

    @property
    def worse(self) -> bool:
        """Whether the last try was worse than that of the other checkout.

        A ratio to a peer is so only if hpccomm itself took longer: MPI libraries are twice as fast in
        some launches as in others.
        """
        if not self.others:
            return False
        mine, other = self.tries[-1], self.others[-1]
        timed = mine.seconds is not None and other.seconds is not None
        longer = not timed or (mine.seconds or 0.0) > (other.seconds or 0.0) * (1 + TOLERANCE)
        return longer and self.promise.worse(mine.value, other.value, TOLERANCE)

    @property
    def verdict(self) -> str:
        """One word on the last try: in capitals if it broke the promise, or was worse than the other checkout."""
        if not self.tries:
            return "skipped"
        if not self.promise.kept(self.tries[-1].value):
            return "SHORT"
        return "WORSE" if self.worse else "kept"

    @property
    def short(self) -> bool:
        """Whether the last try fell short."""
        return self.verdict.isupper()

    def text(self) -> str:
        """Return the line that is printed."""
        one = self.promise
        if not self.tries:
            return f"{self.verdict:8}{one.name:52} {self.skipped}"
        measured, unit = self.tries[-1], one.group.unit
        bound = f"(at {one.kind} {one.bound:g})"
        lines = [(self.verdict, one.name, bound, measured)]
        lines += [("", "  against", "", other) for other in self.others[-1:]]
        text = [
            f"{verdict:8}{name:52}{figure.value:9.3f} {unit} {limit:16} {figure.says}"
            for verdict, name, limit, figure in lines
        ]
        # Of a traceback, the error is the last line.
        text += [f"{'':8}  not against: {why}" for why in self.skipped.splitlines()[-1:]]
        return "\n".join(text)

    def record(self) -> dict[str, object]:
        """Return what is stored."""
        one = self.promise
        return {
            "group": one.group.name,
            "figure": one.figure,
            "kind": one.kind,
            "bound": one.bound,
            "unit": one.group.unit,
            "verdict": self.verdict,
            "tries": [asdict(figure) for figure in self.tries],
            "against": [asdict(figure) for figure in self.others],
            "skipped": self.skipped,
        }


def measured(group: Group, names: Sequence[str], checkout: Path) -> dict[str, Figure]:
    """Run the command of a group with the hpccomm of a checkout; return its figures by name."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [
            *_launcher(group),
            *("env", f"PYTHONPATH={checkout}", sys.executable),
            *(str(CHECKOUT / "benchmarks" / group.program), *group.options),
            *("--json", str(file), *names),
        ]
        environment = {"OMPI_MCA_osc": "^ucx", **os.environ, "HPCCOMM_VENV": sys.prefix}
        try:
            how: dict[str, Any] = {"cwd": CHECKOUT, "env": environment, "timeout": PATIENCE}
            done = subprocess.run(command, capture_output=True, text=True, **how)
        except subprocess.TimeoutExpired:
            raise CannotMeasure(f"was stopped after {PATIENCE:g} s") from None
        if done.returncode == UNAVAILABLE:
            raise Unavailable(done.stderr.strip().splitlines()[0])
        if done.returncode:
            raise CannotMeasure(f"exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
        return figures(file)


def _launcher(group: Group) -> list[str]:
    """Return what the command of a group is started by."""
    if group.cluster is not None:
        return jobs.cluster(*group.cluster)
    return [] if group.ranks is None else [jobs.mpiexec(), "-n", str(group.ranks)]


def measure(lines: Sequence[Line], against: Path | None) -> bool:
    """Measure promises group by group and print them; return whether all could be measured."""
    complete = True
    for group, of_group in groupby(lines, key=lambda line: line.promise.group):
        members = list(of_group)
        names = [line.promise.figure for line in members]
        for checkout in [CHECKOUT] if against is None else [CHECKOUT, against]:
            try:
                found = measured(group, names, checkout)
            except CannotMeasure as error:
                complete &= isinstance(error, Unavailable)
                for line in members:
                    line.skipped = str(error)
                break
            for line in members:
                figure = found.get(line.promise.figure)
                if figure is None:
                    whose = "this" if checkout is CHECKOUT else "the other"
                    line.skipped = f"{whose} checkout has no such call"
                    complete &= checkout is not CHECKOUT
                else:
                    (line.tries if checkout is CHECKOUT else line.others).append(figure)
        for line in members:
            print(line.text(), flush=True)
    return complete


def facts(against: Path | None) -> dict[str, object]:
    """Return what the run is made with."""
    checkouts = [CHECKOUT] if against is None else [CHECKOUT, against]
    packages = ("hpccomm", "numpy", "mpi4py")
    return {
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "machine": machine(),
        "load": os.getloadavg()[0],
        "commits": [_commit(checkout) for checkout in checkouts],
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in packages},
    }


def _commit(checkout: Path) -> str:
    """Return the commit of a checkout, with a plus sign where files differ; nothing without git."""
    words = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    try:
        said = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed: the figures are told all the same
        return ""
    return said.stdout.strip()


def main() -> int:
    """Measure, print and store; return the exit status."""
    options = {
        "list": Option(False, "print the promises and measure nothing"),
        "against": Option(None, "a checkout to compare with", Path),
        "promises": Option(FILE, "other promises than ours", Path),
        "output": Option(None, "JSON file in which the run is stored", Path),
    }
    parser = program.parser(__doc__, options)
    parser.prog = "bench.sh"
    parser.add_argument("names", nargs="*", help="parts of the names of promises (default: all)")
    request = parser.parse_args()
    lines = [Line(promise) for promise in promises(request.promises, request.names or ("",))]
    if not lines:
        parser.error(f"no promise has {' or '.join(request.names)} in its name; see --list")
    if request.list:
        for line in lines:
            one = line.promise
            print(f"{one.name:52} at {one.kind} {one.bound:g} {one.group.unit}")
        return 0
    against = None if request.against is None else request.against.resolve()
    if against is not None and not (against / "hpccomm").is_dir():
        parser.error(f"{against} has no folder hpccomm; give a checkout's root")
    begin = time.perf_counter()
    said = facts(against)
    print("".join(f"# {name}: {value}\n" for name, value in said.items()), flush=True)
    complete = measure(lines, against)
    again = [line for line in lines if line.short]
    if again:
        print(f"\n# {len(again)} fell short; each is measured once more\n", flush=True)
        complete &= measure(again, against)
    short = [line.promise.name for line in lines if line.short]
    skipped = sum(not line.tries for line in lines)
    seconds = time.perf_counter() - begin
    counts = f"{len(lines) - len(short) - skipped} kept, {len(short)} short twice in a row"
    print(f"\n# {counts}, {skipped} skipped, in {seconds:.0f} s")
    for name in short:
        print(f"#   short: {name}")
    file = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}.json"
    output = request.output or CHECKOUT / "results" / "bench" / file
    output.parent.mkdir(parents=True, exist_ok=True)
    run = {**said, "seconds": round(seconds), "promises": [line.record() for line in lines]}
    output.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"# stored in {output}")
    return 1 if short else 0 if complete else 2


if __name__ == "__main__":
    sys.exit(main())
