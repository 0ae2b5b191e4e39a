"""Runs the stages of jobs/gpu_acceptance.sh, whose help says what they are."""

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import preflight
from installing import hindrance, install, interpreter
from preflight import Found, Lack
from running import CHECKOUT, GRACE, STOPPED, GivesUp, elapsed, limited, say
from stages import GPU, STAGES, Command, Stage

LEFT = 3
"""Exit status: none failed, and some stages are left for another run, or none has run on a GPU."""
SHOWN = re.compile(r"(PASS|FAIL|INFO)  |(FAILED|ERROR|==) ")
"""The lines of a log that the summary has: verdicts, tests that failed, and what was run."""
DONE = "== done"
TAIL = 40
"""The lines that are printed of what a stage wrote that failed."""
SHARING = next(stage for stage in STAGES if not stage.commands)
TRIAL_SECONDS = 20.0
TRIAL = """
import cupy, hpccomm
with hpccomm.new_comm("nccl", timeout=15) as comm:
    x = cupy.ones(1000, "f")
    comm.all_reduce(x)
    assert (x.get() == comm.size).all()
"""
ENABLED, HOSTS = "NCCL_MULTI_RANK_GPU_ENABLE=1", "a NCCL_HOSTID of its own for each"
UNDER_MPS = " under MPS"
OF_RANK = (
    'export NCCL_HOSTID=hpccomm-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${SLURM_PROCID:?}}}; exec "$@"'
)
"""Which host NCCL takes a rank to be on: it never compares the GPUs of several hosts."""


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="gpu_acceptance.sh", usage="see --help", add_help=False)
    parser.add_argument("--stages", default="")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--copy-to", type=Path, default=os.environ.get("OUT"))
    for flag in ("--preflight", "--again", "--no-install", "--stand-in"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    names = [stage.name for stage in STAGES]
    named = options.stages.split(",") if options.stages else names
    for word in set(named) - set(names):
        parser.error(f"--stages takes some of {','.join(names)}; not '{word}'")
    options.chosen = [stage for stage in STAGES if stage.name in named]
    return options


def environment(standin: bool) -> dict[str, str]:
    """Return the variables of all commands."""
    variables = dict(os.environ)
    path = [CHECKOUT / "tests/standin", CHECKOUT] if standin else [CHECKOUT]
    site = filter(None, variables.pop("SITE_PYTHONPATH", "").split(":"))
    variables["PYTHONPATH"] = ":".join([*map(str, path), *site])
    variables |= {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    # More ranks than cores, and Open MPI as root: other libraries ignore these.
    variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    variables["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
    if os.geteuid() == 0:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return variables


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Have MPS run meanwhile; give the variables by which ranks reach it. The site's may run already."""
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        variables = dict.fromkeys(("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"), folder)
        around = {**os.environ, **variables}
        limited(["nvidia-cuda-mps-control", "-d"], 20, around)
        try:
            yield variables
        finally:
            limited(["sh", "-c", "echo quit | nvidia-cuda-mps-control"], 20, around)


class Acceptance:
    """One run: what it found, and the folder of its results, with which another run goes on."""

    def __init__(self, options: argparse.Namespace, found: Found) -> None:
        self.options, self.found = options, found
        self.devices = int(found.probe["driver"]["devices"])
        device = "the stand-in" if options.stand_in else found.probe["cupy"]["device"]
        commit = preflight.commit().partition(",")[0]
        name = re.sub(r"\W+", "-", f"gpu-acceptance-{commit}-{device}").strip("-")
        self.folder = (options.output or CHECKOUT / "results" / name).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.variables = environment(options.stand_in) | {"HPCCOMM_MPIEXEC": found.mpiexec}
        self.variables.setdefault("HPCCOMM_DUMP_DIR", str(self.folder / "dumps"))
        self.skipped: dict[str, str] = {}
        """Why stages have not run."""

    def path(self, stage: Stage) -> Path:
        """Return the file with all that a stage has printed, in this run or an earlier one."""
        return self.folder / f"{stage.name}.log"

    def lines(self, stage: Stage) -> list[str]:
        """Return the lines that the summary has of a stage, ended or not."""
        lines = text_of(self.path(stage)).splitlines()
        return [line for line in lines if SHOWN.match(line)]

    def done(self, stage: Stage) -> bool:
        """Tell whether a stage has ended."""
        return any(line.startswith(DONE) for line in self.lines(stage))

    def add(self, stage: Stage, line: str) -> None:
        """Add a line to what a stage has printed."""
        with self.path(stage).open("a", encoding="utf-8") as file:
            print(line, file=file)

    def run(self, stage: Stage) -> None:
        """Run a stage, and show its verdicts."""
        shares = any(command.ranks > self.devices for command in stage.commands)
        if shares and not self.done(SHARING):
            self.run(SHARING)
        say(f"== stage {stage.name}, at most {stage.seconds} s; it writes to {self.path(stage)}")
        began = time.monotonic()
        self.path(stage).unlink(missing_ok=True)
        self.add(stage, f"== stage {stage.name}, {now()}, {os.uname().nodename}")
        try:
            for command in stage.commands:
                self.command(stage, command, began + stage.seconds - GRACE - time.monotonic())
            if stage == SHARING:
                self.share(stage)
            self.add(stage, f"{DONE} after {time.monotonic() - began:.0f} s")
        except KeyboardInterrupt as why:
            self.add(stage, f"INFO  {stage.name}: {why}; the next run repeats it")
            raise
        finally:
            lines = self.lines(stage)
            if any(line.startswith("FAIL  ") for line in lines):
                lines = [*text_of(self.path(stage)).splitlines()[-TAIL:], *lines]
            for line in lines:
                say(f"   {line}")
            self.leave()

    def command(self, stage: Stage, command: Command, seconds: float) -> None:
        """Run a command of a stage for so many seconds at most, and add the verdict on how it ended."""
        if command.launcher and "Open MPI" not in self.found.library:
            return self.add(stage, f"INFO  not tried: {command.text} takes Open MPI")
        way = text_of(self.folder / "way")
        if command.ranks > self.devices and not way:
            text = f"{command.ranks} ranks cannot share {self.devices} GPU(s)"
            return self.add(stage, f"FAIL  {command.text}: {text}")
        self.add(stage, f"== {command.text}")
        before, began = len(text_of(self.path(stage))), time.monotonic()
        status = self.launch(stage, command, way, seconds)
        said, took = text_of(self.path(stage))[before:], f"{time.monotonic() - began:.0f} s"
        if status == STOPPED:
            return self.add(stage, f"FAIL  {command.text}: stopped after {took}")
        if command.words[0] == "-m":
            counts = re.findall(r"=*(.*\d (?:passed|failed|skipped|error).*?)[ =]*$", said, re.M)
            nothing = "pytest" in command.words and not re.search(r"\d passed", said)
            ok = "FAIL" if status else "INFO" if nothing else "PASS"
            text = f"exit status {status}{''.join(counts[-1:])} ({took})"
            return self.add(stage, f"{ok}  {command.text}: {text}")
        verdicts = re.findall(r"^(PASS|FAIL|INFO)  ", said, re.M)
        # A launcher's exit status says nothing where a rank is killed.
        failed = status and "--lose" not in command.words
        if not verdicts or (failed and "FAIL" not in verdicts):
            return self.add(stage, f"FAIL  {command.text}: exit status {status} ({took})")
        return None

    def launch(self, stage: Stage, command: Command, way: str, seconds: float) -> int:
        """Run a command's ranks, which share GPUs in a way if there are fewer; return the exit status."""
        results = str(self.folder / "perf.h5")
        words = [self.found.python, *(w.replace("{results}", results) for w in command.words)]
        variables = self.variables | dict(each.split("=") for each in command.variables)
        way = way if command.ranks > self.devices else ""
        if way.startswith(ENABLED):
            variables["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        if command.ranks > 2 * self.devices:
            variables.setdefault("NCCL_MAX_CTAS", "2")  # NCCL's kernels must leave each other room
        if way.startswith(HOSTS):
            words = ["sh", "-c", OF_RANK, "sh", *words]
            variables.setdefault("NCCL_SOCKET_IFNAME", "lo")
        if command.ranks:
            words = [self.found.mpiexec, *command.launcher, "-n", str(command.ranks), *words]
        # A process that is killed with kernels under way can leave an MPS server to hang.
        under_mps = way.endswith(UNDER_MPS) and "--lose" not in command.words
        around: AbstractContextManager[dict[str, str]] = mps() if under_mps else nullcontext({})
        with around as reached, self.path(stage).open("ab") as file:
            return limited(words, seconds, variables | reached, file)

    def share(self, stage: Stage) -> None:
        """Find how two ranks share a GPU: NCCL refuses it, but for a variable that it has from 2.30."""
        way = ENABLED if self.found.probe["cupy"]["nccl"] >= 23000 else HOSTS
        control = shutil.which("nvidia-cuda-mps-control") or "CUDA_MPS_PIPE_DIRECTORY" in os.environ
        taken = ""
        for each in dict.fromkeys((way, way + UNDER_MPS if control else HOSTS)):
            if taken and each == HOSTS:
                break
            began = time.monotonic()
            works = not self.launch(stage, Command(("-c", TRIAL), 2), each, TRIAL_SECONDS)
            text = f"{'yes' if works else 'no'} ({time.monotonic() - began:.0f} s)"
            self.add(stage, f"INFO  2 ranks share {self.devices} GPU(s) by {each}: {text}")
            taken = each if works else taken
        (self.folder / "way").write_text(taken, encoding="utf-8")
        if not taken:
            self.add(stage, "FAIL  two ranks cannot share a GPU: NCCL refused (see the log)")

    def leave(self) -> None:
        """Write the summary of all stages so far, and copy the folder."""
        on = "the stand-in for CuPy: nothing ran on a GPU" if self.options.stand_in else "GPUs"
        lines = [f"## hpccomm on {on}, {now()}", "", "```text", *preflight.facts(self.found), ""]
        lines += [line for stage in STAGES for line in self.lines(stage)]
        lines += [f"not run: {name}, {why}" for name, why in self.skipped.items()]
        (self.folder / "summary.md").write_text("\n".join([*lines, "```", ""]), encoding="utf-8")
        if self.options.copy_to:
            target = Path(self.options.copy_to) / self.folder.name
            shutil.copytree(self.folder, target, dirs_exist_ok=True)


def text_of(path: Path) -> str:
    """Return what a file has; '' without it. Open MPI's launcher prints zeros."""
    return path.read_text("utf-8", "replace").replace("\0", "") if path.exists() else ""


def now() -> str:
    """Return the date and the time as text."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def prepared(options: argparse.Namespace) -> tuple[Found, dict[str, Lack]]:
    """Look, and install what is missing until nothing new is wanted; at most twice."""
    variables, python = environment(options.stand_in), interpreter()
    asked: list[list[Lack]] = [[]]
    named = os.environ.get("HPCCOMM_MPIEXEC")
    while True:
        launchers = [named] if named else [str(Path(python).parent / "mpiexec"), "mpiexec"]
        seconds = 12.0 if options.preflight else 60.0
        found = preflight.look(python, variables, launchers, seconds)
        lacks = preflight.lacking(found)
        wanted = preflight.wanted(options.chosen, lacks)
        cannot = "--no-install" if options.no_install else hindrance() if wanted else ""
        say(f"== preflight, {now()}: {elapsed():.0f} s")
        preflight.report(found, lacks, options.chosen, cannot)
        if options.preflight or GPU in lacks or cannot or wanted in asked or len(asked) > 2:
            return found, lacks
        asked.append(wanted)
        python = install(python, wanted)


def main() -> int:
    """Run what is asked for; return the exit status."""
    options = parsed()
    found, lacks = prepared(options)
    if options.preflight:
        return 2 if GPU in lacks else int(bool(preflight.wanted(options.chosen, lacks)))
    if GPU in lacks:
        raise GivesUp(
            f"{lacks[GPU].why}.\n"
            "  Run this on a machine with an NVIDIA GPU and its driver; in a container, with the GPU handed in\n"
            "  (docker run --gpus all), and with CUDA_VISIBLE_DEVICES unset or naming it."
        )
    return carried_out(Acceptance(options, found), lacks)


def carried_out(acceptance: Acceptance, lacks: dict[str, Lack]) -> int:
    """Run the chosen stages; return the exit status."""
    options, skipped = acceptance.options, acceptance.skipped
    failed = late = False
    for stage in options.chosen:
        drops = preflight.outlook(stage, lacks, "nothing more is installed")[1]
        if acceptance.done(stage) and not options.again:
            say(f"== {stage.name}: done before (--again repeats it)")
        elif drops:
            skipped[stage.name] = drops
            failed |= bool(options.stages)  # what was asked for and cannot be done is no success
        elif options.seconds - elapsed() < stage.seconds:
            skipped[stage.name] = f"not begun, it may take {stage.seconds} s"
            late = True
        else:
            acceptance.run(stage)
    acceptance.leave()
    lines = [line for stage in options.chosen for line in acceptance.lines(stage)]
    failed |= any(line.startswith("FAIL  ") for line in lines)
    ran = any(map(acceptance.done, options.chosen)) and not options.stand_in
    say(f"== summary and logs: {acceptance.folder}")
    for why in dict.fromkeys(skipped.values()):
        say(f"   SKIP  {', '.join(name for name in skipped if skipped[name] == why)}: {why}")
    for line in lines:
        if line.startswith("FAIL  "):
            say(f"   {line}")
    say("== FAILED" if failed else "== none failed" if ran else "== nothing ran on a GPU")
    if late:
        say("== stages are left: the same command goes on with them")
    return 1 if failed else LEFT if late or not ran else 0


def interrupted(number: int, _frame: object) -> None:
    """Leave by an exception, which ends the command that runs and writes what there is."""
    raise KeyboardInterrupt(signal.Signals(number).name)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        sys.exit(main())
    except GivesUp as error:
        print(f"gpu_acceptance.sh: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
