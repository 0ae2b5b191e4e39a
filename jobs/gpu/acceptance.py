"""Runs the stages of jobs/gpu_acceptance.sh, whose help says what they are."""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import preflight
from preflight import CHECKOUT, Found, Lack
from running import (
    GRACE,
    OUT,
    STOPPED,
    VERDICT,
    GivesUp,
    date,
    elapsed,
    give_up,
    limited,
    listen,
    say,
)
from stages import Command, Stage, stages
from surroundings import environment, installed, interpreter, launchers, mps

LEFT = 3
"""Exit status: none failed, and some stages are left for another run."""
TRIAL_SECONDS = 40.0

TRIAL = """
import cupy, hpccomm
with hpccomm.new_comm("nccl", timeout=30) as comm:
    x = cupy.ones(1000, "f")
    comm.all_reduce(x)
    assert (x.get() == comm.size).all()
"""
OF_RANK = (
    'export NCCL_HOSTID=hpccomm-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${SLURM_PROCID:?}}}; exec "$@"'
)
"""Which host NCCL takes a rank to be on."""
HOSTS, ENABLED = "NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE"
WAYS = {
    HOSTS: "a NCCL_HOSTID of its own for each",
    ENABLED: "NCCL_MULTI_RANK_GPU_ENABLE=1",
}
Sharing = tuple[str, bool]
"""How ranks share a GPU: one of `WAYS`, and whether by MPS."""


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="gpu_acceptance.sh", usage="see --help", add_help=False)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--stages", default="")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    for flag in ("--preflight", "--again", "--no-install", "--no-mps", "--stand-in"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    try:
        options.ranks = sorted({int(word) for word in options.ranks.split(",")})
    except ValueError:
        options.ranks = [0]
    if options.ranks[0] < 1:
        parser.error("--ranks takes numbers such as 1,2,4")
    every = stages(options.ranks, standin=options.stand_in)
    names = {stage.name for stage in every} | {stage.kind for stage in every}
    named = [word for word in options.stages.split(",") if word]
    unknown = [word for word in named if word not in names]
    if unknown:
        kinds = dict.fromkeys(stage.kind for stage in every)
        parser.error(f"--stages takes some of {','.join(kinds)}; not '{unknown[0]}'")
    exact = {stage.name for stage in every}
    # "tests" is a stage; "perf" is none, and means all of them.
    whole = {word for word in named if word not in exact}
    options.chosen = [s for s in every if not named or s.name in named or s.kind in whole]
    options.named = bool(named)
    options.every = every
    if options.output is None:
        commit = preflight.commit().partition(",")[0]
        options.output = CHECKOUT / "results" / f"gpu-acceptance-{commit}"
    options.output = options.output.absolute()
    return options


class Late(Exception):
    """The time of this run is over, though not the stage's own."""


def shown(line: str) -> str:
    """Print a verdict."""
    say(line)
    return line


class Acceptance:
    """One run: what it found, its folder, and how ranks share GPUs."""

    def __init__(
        self, options: argparse.Namespace, found: Found, variables: dict[str, str]
    ) -> None:
        self.options = options
        self.found = found
        self.mps: tuple[dict[str, str], str] = ({}, "")
        """The variables by which ranks reach MPS, and a text that says whether there is one."""
        self.folder: Path = options.output
        self.variables = {**variables, **found.variables}
        self.variables.setdefault("HPCCOMM_DUMP_DIR", str(self.folder / "dumps"))
        if found.mpiexec:
            self.variables["HPCCOMM_MPIEXEC"] = found.mpiexec

    # Results.

    def file(self, name: str) -> Path:
        """Return the file of a stage's verdicts, which is there once it has ended."""
        return self.folder / f"{name}.txt"

    def done(self, name: str) -> bool:
        """Tell whether a stage has ended, in this run or an earlier one."""
        return self.file(name).exists()

    def verdicts(self, name: str) -> list[str]:
        """Return the verdicts of a stage, ended or not, and what they are of."""
        paths = (self.file(name), self.file(name).with_suffix(".part"))
        text = "".join(path.read_text("utf-8") for path in paths if path.exists())
        return [line for line in text.splitlines() if VERDICT.match(line) or line.startswith("# ")]

    def write(self, name: str, lines: Sequence[str], seconds: float) -> None:
        """Write a stage's verdicts."""
        text = "\n".join([f"# {name}: {seconds:.0f} s, {date()}, {os.uname().nodename}", *lines])
        partial = self.file(name).with_suffix(".new")
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(self.file(name))
        self.file(name).with_suffix(".part").unlink(missing_ok=True)

    def summarize(self, left: Sequence[str]) -> list[str]:
        """Write the summary of all that has ended; return its verdicts."""
        names = [f"sharing-{n}" for n in sorted({2, *self.options.ranks})]
        names += [stage.name for stage in self.options.every]
        verdicts = [line for name in names for line in self.verdicts(name)]
        standin = self.options.stand_in
        on = "the stand-in for CuPy, no GPU" if standin else "GPUs"
        lines = [f"## hpccomm on {on}, {date()}", ""]
        lines += ["Nothing here ran on a GPU.", ""] if standin else []
        lines += ["```text", *preflight.facts(self.found), "```", "", "```text", *verdicts, "```"]
        if left:
            lines += ["", "Not run:", "", "```text", *left, "```"]
        (self.folder / "summary.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return verdicts

    # Commands.

    def run(self, stage: Stage) -> None:
        """Run a stage, and write its verdicts as they come: a run that is killed leaves them too.

        Raises
        ------
        Late
            If this run's time was over before the stage's.
        """
        began = time.monotonic()
        room = self.options.seconds - elapsed()
        ends = began + min(stage.seconds, room) - GRACE
        late = room < stage.seconds
        partial = self.file(stage.name).with_suffix(".part")
        lines: list[str] = []

        def add(line: str) -> None:
            lines.append(line)
            partial.write_text("\n".join(lines) + "\n", encoding="utf-8")

        try:
            for command in stage.commands:
                if time.monotonic() < ends:
                    self.command(command, ends, late, add)
                elif late:
                    raise Late
                else:
                    words = " ".join(command.words)
                    text = f"the {stage.seconds} s were over before {words}"
                    add(shown(f"FAIL  {stage.name}: {text}"))
        except (KeyboardInterrupt, Late) as why:
            took = time.monotonic() - began
            text = (
                f"{str(why) or '--seconds were over'} after {took:.0f} s; the next run repeats it"
            )
            add(shown(f"INFO  {stage.name}: {text}"))
            raise
        self.write(stage.name, lines, time.monotonic() - began)

    def command(
        self, command: Command, ends: float, late: bool, add: Callable[[str], None]
    ) -> None:
        """Run a command of a stage, at most until the clock is at `ends`, and add its verdicts.

        Raises
        ------
        Late
            If it was stopped, and it is `late`: another run gives it more time.
        """
        if command.launcher and "Open MPI" not in self.found.probe["mpi"]:
            text = f"{' '.join(command.words)}: takes Open MPI's {' '.join(command.launcher)}"
            add(shown(f"INFO  not tried: {text}"))
            return
        shared = command.ranks > self.found.devices
        if shared and not self.shares(command.ranks):
            add(shown(f"FAIL  {command.ranks} ranks cannot share {self.found.devices} GPU(s)"))
            return
        words = [word.replace("{results}", str(self.folder / "perf.h5")) for word in command.words]
        say(f"== {' '.join(words)}{f', ranks: {command.ranks}' if command.ranks else ''}")
        if not command.title:
            settings = [f"{name}={value}" for name, value in command.variables.items()]
            ranks = [f"ranks: {command.ranks}"] if command.ranks else []
            add(f"#   {', '.join([' '.join(words), *ranks, *settings])}")
        counts, judged, failed = "", False, False

        def heard(line: str) -> None:
            nonlocal counts, judged, failed
            if re.search(r"\d+ (passed|failed|skipped)", line):
                counts = line.strip("= ")
            if command.title and line.startswith(("FAILED ", "ERROR ")):
                add(f"#   {line}")
            if VERDICT.match(line) and not command.title:
                judged, failed = True, failed or line.startswith("FAIL")
                # Of a stand-in no figure says anything; of ranks that share a GPU, few do.
                limits = not command.figures or not (shared or self.options.stand_in)
                add(line if limits else f"INFO{line[4:]}")

        began = time.monotonic()
        status = self.launch(
            words, command, ends - began, self.ways().get(str(command.ranks)), heard
        )
        took = time.monotonic() - began
        name = command.title or f"{' '.join(command.words)}, ranks: {max(command.ranks, 1)}"
        if status == STOPPED and late:
            raise Late
        if status == STOPPED:
            add(shown(f"FAIL  {name}: stopped after {took:.0f} s"))
        elif command.title:
            ok = "PASS" if status == 0 else "FAIL"
            counted = f": {counts}" if counts else ""
            ended = "" if status == 0 else f", exit status {status}"
            add(shown(f"{ok}  {name}{counted}{ended} ({took:.0f} s)"))
        elif not judged or (status and not failed and not command.killed):
            add(shown(f"FAIL  {name}: exit status {status}"))

    def launch(
        self,
        words: list[str],
        command: Command,
        seconds: float,
        sharing: Sharing | None,
        heard: Callable[[str], None] | None,
    ) -> int:
        """Run Python on a command's ranks."""
        whole = [self.found.python, *words]
        variables = {**self.variables, **command.variables}
        if command.ranks:
            way, under_mps = sharing or ("", False)
            # A process that is killed with kernels under way can leave an MPS server to hang.
            if under_mps and not command.killed:
                variables |= self.mps[0]
            if way == ENABLED:
                variables[ENABLED] = "1"
                # With more than two ranks a GPU, NCCL's kernels must leave each other room.
                if command.ranks > 2 * self.found.devices:
                    variables.setdefault("NCCL_MAX_CTAS", "2")
            if way == HOSTS:
                whole = ["sh", "-c", OF_RANK, "sh", *whole]
                variables.setdefault("NCCL_SOCKET_IFNAME", "lo")
            whole = [self.found.mpiexec, *command.launcher, "-n", str(command.ranks), *whole]
        return limited(whole, seconds, variables, CHECKOUT, heard)

    # Sharing: NCCL refuses several ranks on one GPU, unless by the variable that it has from 2.30.
    # Ranks on hosts of their own, as far as NCCL knows, it never compares.

    def ways(self) -> dict[str, Sharing | None]:
        """Return how this number of ranks shares GPUs, as far as tried; None if impossible."""
        path = self.folder / "sharing.json"
        found: dict[str, Sharing | None] = (
            json.loads(path.read_text("utf-8")) if path.exists() else {}
        )
        return found

    def shares(self, ranks: int) -> bool:
        """Find a way for this number of ranks to share GPUs; return whether one exists."""
        known = self.ways()
        if str(ranks) in known:
            return bool(known[str(ranks)])
        new = self.found.probe["cupy"]["nccl"] >= 23000
        ways = (ENABLED, HOSTS) if new else (HOSTS,)
        variables, around = self.mps
        # MPS may start where no rank can then use it.
        tried = [(way, True) for way in ways if variables] + [(way, False) for way in ways]
        taken: Sharing | None = None
        began = time.monotonic()
        for sharing in tried:
            way, under_mps = sharing
            if variables and not under_mps:
                around = "without MPS, by which it does not work"
            text = f"{ranks} ranks share {self.found.devices} GPU(s) by {WAYS[way]}, {around}"
            say(f"== do {text}?")
            words = ["-c", TRIAL]
            if self.launch(words, Command((), ranks), TRIAL_SECONDS, sharing, None) == 0:
                taken = sharing
                break
            say("   that way of sharing does not work here")
        else:
            text = f"{ranks} ranks cannot share {self.found.devices} GPU(s): NCCL refused (see the log)"
        path = self.folder / "sharing.json"
        path.write_text(json.dumps({**known, str(ranks): taken}), encoding="utf-8")
        verdict = shown(f"{'INFO' if taken else 'FAIL'}  {text}")
        self.write(f"sharing-{ranks}", [verdict], time.monotonic() - began)
        return bool(taken)


def begin(options: argparse.Namespace, found: Found) -> None:
    """Make the folder, or see that an earlier run's figures belong to the same things."""
    folder: Path = options.output
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "belongs.json"
    cupy = found.probe["cupy"]
    # Their model: the next run may be on another machine of a cluster.
    devices = [text.partition(",")[0] for text in cupy["devices"]]
    now = [
        preflight.commit(),
        devices,
        cupy["version"],
        cupy["nccl"],
        found.probe["driver"]["cuda"],
    ]
    if options.again:
        for path in [*folder.glob("*.txt"), *folder.glob("*.part"), folder / "sharing.json", mark]:
            path.unlink(missing_ok=True)
    if mark.exists() and json.loads(mark.read_text("utf-8")) != now:
        raise GivesUp(
            f"{folder} has results of another commit, device or library.\n"
            "  Give --output another folder, or --again to begin anew there."
        )
    mark.write_text(json.dumps(now), encoding="utf-8")
    OUT.log = (folder / "log.txt").open("a", encoding="utf-8")


def main() -> int:
    """Run what is asked for; return the exit status."""
    options = parsed()
    standin: bool = options.stand_in
    python = interpreter(sys.executable)
    found = preflight.look(python, environment(standin), launchers(python))
    lacks = preflight.lacking(found)
    if not options.preflight:
        if found.no_gpu:
            raise GivesUp(
                f"{found.no_gpu}.\n"
                "  Run this on a machine with an NVIDIA GPU and its driver; in a container, with the GPU handed in\n"
                "  (docker run --gpus all), and with CUDA_VISIBLE_DEVICES unset or naming it.\n"
                "  --preflight says what is missing beside it; --stand-in tries this script without one."
            )
        begin(options, found)
    say(
        f"== hpccomm on {'the STAND-IN for ' if standin else ''}GPUs, {date()}: preflight, which installs nothing"
    )
    preflight.report(found, lacks, options.chosen)
    say(f"== that took {elapsed():.1f} s")
    if options.preflight:
        ready = [preflight.outlook(stage, lacks)[0] == "runs" for stage in options.chosen]
        return 2 if found.no_gpu else int(not all(ready))
    looked = found
    found = installed(found, lacks, options)
    if found is not looked:
        lacks = preflight.lacking(found)
        preflight.report(found, lacks, options.chosen)
    return carried_out(Acceptance(options, found, environment(standin)), lacks)


def carried_out(acceptance: Acceptance, lacks: dict[str, Lack]) -> int:
    """Run the chosen stages, which leave a summary each; return the exit status."""
    options, found = acceptance.options, acceptance.found
    left: dict[str, str] = {}
    late = missed = False
    for number, stage in enumerate(options.chosen):
        later = [f"{each.name}: not begun" for each in options.chosen[number + 1 :]]
        if acceptance.done(stage.name):
            say(f"== {stage.name}: done before (--again begins anew)")
            continue
        state, why = preflight.outlook(stage, lacks)
        if state != "runs":
            verdict = "FAIL" if options.named else "SKIP"
            missed |= options.named
            left[stage.name] = f"{verdict}  {stage.name}: {why}"
            say(left[stage.name])
            continue
        if options.seconds - elapsed() < stage.seconds / 2:
            late = True
            left[stage.name] = f"{stage.name}: not begun, it may take {stage.seconds} s"
            continue
        say(f"== stage {stage.name}, at most {stage.seconds} s")
        try:
            # Each stage has one of its own: what the last one left in it harms no other.
            with (
                mps(not options.no_mps)
                if stage.ranks > found.devices
                else nullcontext(({}, "")) as around
            ):
                acceptance.mps = around
                acceptance.run(stage)
        except Late:
            late = True
        finally:
            acceptance.summarize([*left.values(), *later])
    verdicts = acceptance.summarize(list(left.values()))
    failed = missed or any(line.startswith("FAIL") for line in verdicts)
    say(
        f"\n== summary{' (on the STAND-IN: it says nothing about GPUs)' if options.stand_in else ''}"
    )
    for line in [*verdicts, *left.values()]:
        say(f"   {line}")
    say(
        f"\n   log       {acceptance.folder / 'log.txt'}\n   summary   {acceptance.folder / 'summary.md'}"
    )
    if (acceptance.folder / "perf.h5").exists():
        say(f"   results   {acceptance.folder / 'perf.h5'}")
    if late:
        say("== stages are left: the same command goes on with them")
    say("== FAILED" if failed else "== none failed" if left else "== all passed")
    return 1 if failed else LEFT if late else 0


if __name__ == "__main__":
    listen()
    try:
        sys.exit(main())
    except GivesUp as error:
        give_up(error)
    except KeyboardInterrupt:
        sys.exit(130)
