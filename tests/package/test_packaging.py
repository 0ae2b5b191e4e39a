"""What the recipes of jobs/packaging, the pages and the workflows say is what pyproject.toml says.

That a recipe is one, its tool has shown: docs/how_to/installing.rst says which tools have run.
"""

import ast
import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from hpccomm import __version__

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "jobs/packaging"
SPACK = RECIPES / "spack_repo/hpccomm/packages/py_hpccomm/package.py"
STATED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = STATED["project"]
PYTHON = PROJECT["requires-python"].removeprefix(">=")


def parsed(lines: list[str]) -> dict[str, SpecifierSet]:
    return {it.name: it.specifier for it in map(Requirement, lines)}


BUILD = parsed(STATED["build-system"]["requires"])
RUN = parsed(PROJECT["dependencies"])


def specs(requirements: dict[str, SpecifierSet]) -> set[str]:
    """Return how Spack spells requirements."""
    own = {"cupy-cuda12x": "py-cupy", "nvidia-nccl-cu12": "nccl"}
    names = {name: own.get(name, f"py-{name.replace('_', '-')}") for name in requirements}
    return {f"{names[name]}@{str(bound)[2:]}:" for name, bound in requirements.items()}


def test_spack_has_the_requirements_of_the_package_and_of_its_extras() -> None:
    named: dict[str, set[str]] = {}
    needed: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(SPACK.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(ast.Name("depends_on"), [ast.Constant(spec)], words):
                when = [word.value.value for word in words if word.arg == "when"]
                needed.setdefault(*when or [""], set()).add(spec.removesuffix(" +cuda"))
            case ast.Call(ast.Name(name), [ast.Constant(value), *_]):
                named.setdefault(name, set()).add(value)
    assert needed.pop("") == {"mpi", f"python@{PYTHON}:"} | specs(BUILD | RUN)
    extras = PROJECT["optional-dependencies"]
    extras["cuda"] = extras["cuda12"]
    assert needed == {f"+{each}": specs(parsed(extras[each])) for each in named["variant"]}
    assert named["version"] == {__version__}
    assert named["license"] == {PROJECT["license"]}


def test_easybuild_s_versions_are_among_the_required_ones() -> None:
    (path,) = (RECIPES / "easybuild").iterdir()
    said = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        and node.targets[0].id != "sources"  # a constant of EasyBuild
    }
    assert path.name == "{name}-{version}-{toolchain[name]}-{toolchain[version]}.eb".format(**said)
    assert (said["version"], said["description"]) == (__version__, PROJECT["description"])
    modules = dict(said["builddependencies"] + said["dependencies"])
    modules["numpy"] = {"2026.05": "2.4.6"}[modules["SciPy-bundle"]]
    assert modules["Python"] in SpecifierSet(PROJECT["requires-python"])
    wrong = [name for name, bound in (BUILD | RUN).items() if modules[name] not in bound]
    assert wrong == []


def test_conda_has_the_requirements() -> None:
    recipe = yaml.safe_load((RECIPES / "conda/recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"] == {"version": __version__, "python_min": PYTHON}
    build, run = ([f"{name} {bound}" for name, bound in each.items()] for each in (BUILD, RUN))
    assert recipe["requirements"] == {
        "host": ["python ${{ python_min }}.*", "pip", *build],
        "run": ["python >=${{ python_min }}", *run],
    }
    programs = [f"{name} = {function}" for name, function in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == programs
    about = recipe["about"]
    assert (about["summary"], about["license"]) == (PROJECT["description"], PROJECT["license"])


def test_modules_have_the_version() -> None:
    modules = {path.name: path.read_text("utf-8") for path in RECIPES.glob("modulefiles/*/*")}
    assert set(modules) == {__version__, f"{__version__}.lua"}
    assert all(PROJECT["description"] in text for text in modules.values())


def test_one_checksum_stands_in_all_recipes() -> None:
    texts = [path.read_text(encoding="utf-8") for path in RECIPES.rglob("*") if path.is_file()]
    sums = [sum_ for text in texts for sum_ in re.findall(r"\b[0-9a-f]{64}\b", text)]
    assert (len(sums), len(set(sums))) == (3, 1)


def test_commands_and_recipes_name_this_version() -> None:
    """Figures keep the version that was measured: `hpccomm version 0.1.0 mpi=...`, and docs/measured."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*/*.rst")]
    files += [path for path in RECIPES.rglob("*") if path.is_file()]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files}
    named = re.compile(r"(?:hpccomm[-:/]|\*\*Status: )(\d+\.\d+\.\d+)")
    found = {(name, version) for name, text in texts.items() for version in named.findall(text)}
    assert len(found) > 8
    assert [each for each in found if each[1] != __version__] == []


def test_pages_and_workflows_name_the_supported_pythons() -> None:
    pythons = re.findall(r":: Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert pythons[0] == PYTHON
    for page in ("README.md", "CONTRIBUTING.md"):
        assert f"{PYTHON} to {pythons[-1]}" in (ROOT / page).read_text("utf-8")
    environment = (ROOT / "jobs/environment.sh").read_text("utf-8")
    candidates = " ".join(f"python{each}" for each in reversed(pythons))
    assert f"(python3 {candidates} python)" in environment
    tests, release = (
        yaml.safe_load((ROOT / f".github/workflows/{each}.yml").read_text("utf-8"))["jobs"]
        for each in ("tests", "release")
    )
    assert tests["tests"]["strategy"]["matrix"]["python"] == pythons
    (installed,) = (
        step["with"]["python-version"]
        for step in release["build"]["steps"]
        if "setup-python" in step.get("uses", "")
    )
    assert installed.split() == pythons
