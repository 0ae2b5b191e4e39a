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
from running import GRACE, captured, elapsed, limited, say

INSTALL_SECONDS = 480.0


def venv() -> Path:
    """Return the folder of the environment that missing packages go into."""
    return Path(os.environ.get("HPCCOMM_VENV") or CHECKOUT / ".venv-gpu").absolute()


def interpreter(base: str) -> str:
    """Return the Python of that environment, if an earlier run made it over this base; else the base."""
    mark, python = venv() / "base", venv() / "bin/python"
    made = mark.exists() and mark.read_text("utf-8") == base and python.exists()
    return str(python) if made else base


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
    """Make the environment that missing packages go into; return its Python, or '' if there can be none.

    It sees what the base sees, its pip too. What is installed goes before that.
    """
    folder = venv()
    python = str(folder / "bin" / "python")
    say(f"== making {folder} over {base}")
    # Without pip: systems that leave out ensurepip cannot make one with it.
    words = [base, "-m", "venv", "--clear", "--system-site-packages", "--without-pip", str(folder)]
    if limited(words, 120, os.environ, CHECKOUT):
        say("   it cannot be made: set HPCCOMM_VENV to another folder")
        return ""
    own = captured(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], 20, os.environ
    )
    # A virtual environment sees the system's packages, but not those of another virtual environment
    # that it is made with. Prefixes are where CuPy looks for NVIDIA's libraries.
    ask = (
        "import json, site, sys;"
        "print(json.dumps([site.getsitepackages(), sys.prefix, sys.prefix != sys.base_prefix]))"
    )
    seen, prefix, nested = json.loads(captured([base, "-c", ask], 20, os.environ))
    lines = [path for path in seen if path != own.strip()]
    if nested:
        lines.append(f"import site; site.PREFIXES.append({prefix!r})")
    Path(own.strip(), "of_the_base.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if captured([python, "-c", "import pip; print(1)"], 20, os.environ).strip() != "1":
        limited([python, "-m", "ensurepip"], 120, os.environ, CHECKOUT)
    (folder / "base").write_text(base, encoding="utf-8")
    return python


@contextmanager
def mps(wanted: bool) -> Iterator[tuple[dict[str, str], str]]:
    """Have MPS run meanwhile, where it may: without it, ranks on one GPU take turns of milliseconds.

    Gives the variables by which ranks reach it, and a text that says whether there is one.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}, "under the MPS that CUDA_MPS_PIPE_DIRECTORY names"
        return
    if not wanted or control is None:
        yield {}, f"without MPS ({'no nvidia-cuda-mps-control here' if wanted else '--no-mps'})"
        return
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        variables = dict.fromkeys(("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"), folder)
        around = {**os.environ, **variables}
        if limited([control, "-d"], 20, around, CHECKOUT):
            yield {}, "without MPS (it may not be started here)"
            return
        try:
            yield variables, "under MPS"
        finally:
            limited(["sh", "-c", f"echo quit | {control}"], 20, around, CHECKOUT)


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
    if not python:
        return found
    say(f"== installing {' '.join(wanted)}")
    words = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    words += ["--retries", "1", "--timeout", "15", *wanted]
    seconds = min(INSTALL_SECONDS, options.seconds - elapsed() - GRACE)
    if limited(words, seconds, os.environ, CHECKOUT):
        say("   pip could not install these (see above): stages that need them drop")
    return preflight.look(python, environment(False), launchers(python))
