"""The promises of the package before its first use."""

import importlib.metadata
import importlib.resources
import json
import re
import subprocess
from pathlib import Path

import pytest
from alone import python

import hpccomm

ROOT = Path(__file__).parents[2]
HEAVY = {"mpi4py", "mpi4py.MPI", "cupy", "h5py", "torch", "vl_convert"}
STEPS = (
    "import hpccomm",
    "hpccomm.ReduceOp, hpccomm.CommOptions, hpccomm.LaunchError, hpccomm.gradients.GradientSync; "
    "import hpccomm.tools.main, hpccomm.testing, hpccomm.tools.slurm.slurm",
    "hpccomm.new_comm('loopback').barrier()",
    "import hpccomm.results",
)
"""What one fresh interpreter does, one after the other."""


def test_what_is_not_used_is_not_loaded() -> None:
    """Neither MPI nor CUDA nor HDF5 by imports, by the package alone not even NumPy, and HDF5 by results alone."""
    report = "print(json.dumps(sorted(sys.modules)))"
    lines = [line for step in STEPS for line in (step, report)]
    done = python("-c", "\n".join(("import json, sys", *lines)), check=True)
    package, imports, communicator, results = (
        set(json.loads(line)) for line in done.stdout.splitlines()
    )
    assert "numpy" not in package
    assert imports & HEAVY == set()
    assert communicator & HEAVY <= {"mpi4py", "mpi4py.MPI"}
    assert (results - communicator) & HEAVY <= {"h5py"}


def test_public_names_are_there() -> None:
    assert set(dir(hpccomm)) >= set(hpccomm.__all__)
    for name in hpccomm.__all__:
        assert getattr(hpccomm, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = hpccomm.no_such_name


def test_version_is_the_distribution_s_and_is_cited() -> None:
    assert importlib.metadata.version("hpccomm") == hpccomm.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {hpccomm.__version__}" in citation.splitlines()


def test_the_changelog_and_the_tag_have_that_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.search(r"^## (\S+) \((.+)\)$", changelog, re.MULTILINE).groups()
    assert version == hpccomm.__version__
    command = ["git", "tag", "--points-at", "HEAD", "--list", "v*"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if tags := asked.stdout.split():  # a release
        assert tags == [f"v{version}"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)


def test_types_are_announced() -> None:
    files = importlib.resources.files("hpccomm")
    assert files.joinpath("py.typed").is_file()


def test_console_script() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="hpccomm")
    assert callable(script.load())
