"""What commands run in: variables, an environment for what is missing, and MPS."""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import preflight
from preflight import CHECKOUT, Found, Lack
from running import GivesUp, captured, elapsed, limited, say

INSTALL_SECONDS = 480.0


def venv() -> Path:
    """Return the folder of the environment that missing packages go into."""
    return Path(os.environ.get("HPCCOMM_VENV") or CHECKOUT / ".venv-gpu").absolute()


def interpreter(base: str) -> str:
    """Return the Python of that environment, if an earlier run made it over this base; else the base."""
    mark = venv() / "base"
    return str(venv() / "bin/python") if mark.exists() and mark.read_text("utf-8") == base else base


def environment(standin: bool) -> dict[str, str]:
    """Return the variables of all commands."""
    variables = dict(os.environ)
    site = variables.pop("SITE_PYTHONPATH", "")
    path = [str(CHECKOUT / "tests" / "standin")] if standin else []
    path += [str(CHECKOUT), *filter(None, site.split(":"))]
    variables |= {"PYTHONPATH": ":".join(path), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    # More ranks than cores, and Open MPI as root: other libraries ignore these.
    variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    variables["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
    if os.geteuid() == 0:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if standin:
        variables.setdefault("STANDIN_DEVICES", "1")
    return variables


def launchers(python: str) -> list[str]:
    """Return what may start ranks, the best first."""
    named = os.environ.get("HPCCOMM_MPIEXEC")
    return [named] if named else [str(Path(python).parent / "mpiexec"), "mpiexec"]


def own_environment(base: str) -> str:
    """Make the environment that missing packages go into; return its Python.

    It sees what the base sees. What is installed goes before that.
    """
    folder = venv()
    python = str(folder / "bin" / "python")
    if captured([python, "-c", "import pip; print(1)"], 20, os.environ).strip() != "1":
        say(f"== making {folder} over {base}")
        words = [base, "-m", "venv", "--clear", "--system-site-packages", str(folder)]
        if limited(words, 120, os.environ, CHECKOUT):
            raise GivesUp(
                f"cannot make a virtual environment at {folder}. Set HPCCOMM_VENV to another folder."
            )
    own = captured(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], 20, os.environ
    )
    # A virtual environment sees the system's packages, but not those of another virtual environment
    # that it is made with. Prefixes are where CuPy looks for NVIDIA's libraries.
    tell = (
        "import json, site, sys;"
        "print(json.dumps([site.getsitepackages(), sys.prefix, sys.prefix != sys.base_prefix]))"
    )
    seen, prefix, nested = json.loads(captured([base, "-c", tell], 20, os.environ))
    lines = [path for path in seen if path != own.strip()]
    if nested:
        lines.append(f"import site; site.PREFIXES.append({prefix!r})")
    Path(own.strip(), "of_the_base.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "base").write_text(base, encoding="utf-8")
    return python


@contextmanager
def mps(wanted: bool, variables: dict[str, str]) -> Iterator[None]:
    """Have MPS run meanwhile, where it may: without it, ranks on one GPU take turns of milliseconds."""
    control = shutil.which("nvidia-cuda-mps-control")
    if not wanted or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        started = limited([control, "-d"], 20, {**os.environ, **own}, CHECKOUT) == 0
        say(f"== MPS {'runs' if started else 'may not be started here: ranks take turns on a GPU'}")
        if started:
            variables |= own
        try:
            yield
        finally:
            if started:
                for name in own:
                    variables.pop(name, None)
                quit_words = ["sh", "-c", f"echo quit | {control}"]
                limited(quit_words, 20, {**os.environ, **own}, CHECKOUT)


def installed(found: Found, lacks: dict[str, Lack], options: argparse.Namespace) -> Found:
    """Install what chosen stages lack, where it is to be had, and look once more."""
    wanted = {
        lack.requirement: lack
        for stage in options.chosen
        if preflight.outlook(stage, lacks)[0] == "installs"
        for lack in preflight.unmet(stage, lacks)
    }
    if not wanted or options.no_install or options.stand_in:
        return found
    made = found.python == str(venv() / "bin/python")
    python = found.python if made else own_environment(found.python)
    say(f"== installing {' '.join(wanted)}")
    words = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    words += ["--retries", "1", "--timeout", "15", *wanted]
    seconds = min(INSTALL_SECONDS, options.seconds - elapsed())
    if limited(words, seconds, os.environ, CHECKOUT):
        say("   pip could not install these (see above): stages that need them drop")
    return preflight.look(python, environment(False), launchers(python))
