"""The text of batch scripts: as bash and Slurm read it, and refusals."""

import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from damage import called
from hypothesis import given
from hypothesis import strategies as st

from hpccomm.errors import UsageError
from hpccomm.tools.slurm.slurm import DIRECTIVES, Request, directive, text

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30)
HOSTILE = [
    "$(touch x)",
    "`touch x`",
    "'; touch x; '",
    '"',
    "\\",
    "*",
    "\n#SBATCH --x\ntouch x\n",
    "",
]

RECORD = """#!/bin/bash
printf '%s\\0' "${0##*/}" "$@" >>"$RECORD"
printf '\\n\\0' >>"$RECORD"
for word; do
    case $word in --output=*) : >"${word#--output=}" ;; esac
done
case ${0##*/} in mkdir | stat) exec "/bin/${0##*/}" "$@" ;; esac
"""


OUTPUT = "--output=results/perf-7.h5"


class Bash:
    """Runs scripts where programs only note how they were called."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "it's $HOME\n" / "bin"
        self.programs.mkdir(parents=True)
        for name in ("srun", "mpiexec", "python", "mkdir", "stat"):
            program = self.programs / name
            program.write_text(RECORD)
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.record = folder / "record"
        self.work = folder / "work"

    def run(self, script: str, status: int = 0, error: str = "") -> list[list[str]]:
        """Return the commands that a script runs, each in words; it ends as is said."""
        self.record.write_bytes(b"")
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        done = subprocess.run(
            ["/bin/bash"],
            input=script.encode(),
            cwd=self.work,
            # `module` is a function of the shell on clusters.
            env={
                "PATH": str(self.programs),
                "RECORD": str(self.record),
                "SLURM_JOB_ID": "7",
                "SLURM_NTASKS": "2",
                "BASH_FUNC_module%%": '() { printf \'%s\\0\' module "$@" >>"$RECORD"; printf \'\\n\\0\' >>"$RECORD"; }',
            },
            capture_output=True,
            timeout=30,
        )
        assert (done.returncode, done.stderr.decode()) == (status, error)
        calls = self.record.read_bytes().decode().split("\n\0")
        return [words for call in calls if call and (words := call.split("\0")[:-1])[0] != "stat"]


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Bash:
    if not Path("/bin/bash").exists():
        pytest.skip("no /bin/bash")
    return Bash(tmp_path_factory.mktemp("bash"))


def request(*arguments: str, **more: object) -> Request:
    """A request of two ranks, started by srun."""
    values = {"python": "/bin/python", "directives": {"ntasks": "2"}, "starter": "pmix"} | more
    return Request(verb="perf", arguments=arguments, **values)  # type: ignore[arg-type]


@given(
    arguments=st.lists(WORDS | st.sampled_from(HOSTILE), max_size=6),
    folder=WORDS.filter(lambda name: name.strip("./") and len(name) < 20),
    module=WORDS,
)
def test_every_word_reaches_its_program_as_it_is_and_nothing_else_runs(
    bash: Bash, arguments: list[str], folder: str, module: str
) -> None:
    folder = re.sub(r"[/\n]", "_", folder)
    # The record parts calls by words that end so.
    arguments, module = [word for word in arguments if not word.endswith("\n")], module.rstrip("\n")
    python = str(bash.programs / "python")
    try:
        script = text(request(*arguments, python=python, folder=folder, modules=(module,)))
    except UsageError:
        assert not module or module.startswith("-")
        return
    output = f"--output={folder}/perf-7.h5"
    assert bash.run(script) == [
        ["module", "load", module],
        ["mkdir", "-p", "--", folder],
        ["srun", "--mpi=pmix", python, "-m", "hpccomm", "perf", output, *arguments],
    ]
    files = {str(file.relative_to(bash.work)) for file in bash.work.rglob("*")}
    assert files == {folder, f"{folder}/perf-7.h5"}


@given(name=st.sampled_from(sorted(DIRECTIVES)), value=WORDS | st.text("0123456789:-", max_size=10))
def test_directives_are_one_word_each_or_refused(name: str, value: str) -> None:
    try:
        line = directive(name, value)
    except UsageError:
        with pytest.raises(UsageError, match=f"--{name} .* does not fit; give "):
            text(request(directives={"ntasks": "2", name: value}))
        return
    asked = request(directives={"ntasks": "2", name: value})
    assert text(asked).count("\n#SBATCH --ntasks=" if name == "ntasks" else f"\n{line}\n") == 1
    if DIRECTIVES[name].metavar:
        assert line.removeprefix(f"#SBATCH --{name}=") == value
    # What sbatch itself would cut, join or unquote.
    assert re.search(r"[\s\"'\\#\0]", line.removeprefix("#SBATCH ")) is None


def test_values_that_slurm_knows_fit() -> None:
    for line in (
        *("time=30", "time=1-0", "time=00:30:00", "nodes=2-4", "gpus-per-node=a100:4"),
        *("constraint=[intel|amd]&ib", "nodelist=n[1-4,7],m1", "account=project:sub"),
    ):
        name, _, value = line.partition("=")
        assert f"\n#SBATCH --{line}\n" in text(request(directives={"ntasks": "2", name: value}))
    for name in ("a/b", "../up", "-n", "."):  # the results file is named after the job
        with pytest.raises(UsageError, match=r"--job-name .* does not fit; give "):
            text(request(directives={"ntasks": "2", "job-name": name}))


def test_slurm_reads_its_lines_before_any_command() -> None:
    script = text(request("all_reduce", directives={"ntasks": "2", "exclusive": ""}))
    head, _, rest = script.partition("\nset -eo pipefail\n")
    assert "#SBATCH" not in rest
    lines = head.split("\n")
    assert lines[0] == "#!/bin/bash"
    assert all(not line or line.startswith("#") for line in lines)
    for line in ("--exclusive", "--time=00:30:00", "--requeue", "--open-mode=append"):
        assert f"#SBATCH {line}" in lines
    assert "#SBATCH --signal=B:TERM@60" in lines


def test_the_script_says_how_ranks_start(bash: Bash) -> None:
    """Binding is spelled for what starts them. Each of several launches starts ranks itself."""
    python = str(bash.programs / "python")
    perf = [python, "-m", "hpccomm", "perf", OUTPUT, "all_reduce"]
    for starter, started in (
        ("pmi2", ["srun", "--mpi=pmi2", "--cpu-bind=ldoms", *perf]),
        ("mpiexec", ["mpiexec", "-n", "2", "--bind-to", "numa", *perf]),
    ):
        asked = request("all_reduce", python=python, starter=starter, binding="numa")
        assert bash.run(text(asked))[1] == started
    several = ("all_reduce", "--launches", "3")
    _, call = bash.run(text(request(*several, python=python, repeats=True, binding="cores")))
    launcher = "--launcher=srun --mpi=pmix --cpu-bind=cores"
    assert call == ["python", "-m", "hpccomm", "perf", OUTPUT, launcher, *several]


def test_a_job_that_started_no_rank_fails(bash: Bash) -> None:
    # srun ends with 0 then, and the file of an earlier run may be there.
    python = str(bash.programs / "python")
    script = text(request("all_reduce", python=python, output="old.h5"))
    script = script.replace("\nset -u\n", "\nset -u\n: >old.h5\n")
    said = "== job 7 added nothing to old.h5; what is printed above may say why\n"
    bash.run(script, 2, said)


# The command line.


def test_flags_of_slurm_stand_on_both_sides_of_perf(tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    words = ("--nodes", "4", "perf", "--ntasks-per-node=8", "all_reduce", "-b8", "-e", "1G")
    status, script, errors = called("slurm", *words)
    assert status == 0, errors
    assert "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n" in script
    assert script.endswith(" all_reduce -b8 -e 1G\n")
    words = ("perf", "all_reduce", "-b8", "-e", "1G", "--ntasks-per-node", "8", "--nodes=4")
    assert called("slurm", *words, "--script", str(file)) == (0, "", "")
    assert file.read_text() == script


def test_measurements_are_not_replaced_by_a_script(tmp_path: Path) -> None:
    file = tmp_path / "runs.h5"
    file.write_bytes(b"\x89HDF\r\n\x1a\n")
    status, _, errors = called("slurm", "perf", "--ntasks=2", "all_reduce", "--script", str(file))
    assert status == 2
    assert "not overwritten" in errors
    assert file.read_bytes() == b"\x89HDF\r\n\x1a\n"


def test_pairs_with_own_output_and_environment(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # the job may run in another folder
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    python = tmp_path / "venv" / "bin" / "python"
    python.touch()
    words = ("--ntasks=8", "--venv=venv", "perf", "pairs", "--budget", "10s", "--output", "a b.h5")
    _, script, _ = called("slurm", *words)
    assert f"\npython={python}\n" in script
    assert script.endswith(" -m hpccomm perf pairs --budget 10s --output 'a b.h5'\n")
    assert "mkdir" not in script
