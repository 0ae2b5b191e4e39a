"""Pages that the code, the scripts and other pages name are there, on a forge as in a checkout."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"(?<![\w/.-])(?:docs/[\w/-]+\.(?:rst|md|tsv|svg)|jobs/[\w/-]+\.\w+)")
ROLE = re.compile(r":doc:`(?:[^`<]*<)?/([\w/-]+)>?`")


FOLDERS = ("hpccomm", "docs", "jobs", "benchmarks", "tests", ".ci", ".github", "changelog.d")
KINDS = {".py", ".sh", ".sbatch", ".tsv", ".toml", ".md", ".rst", ".yml", ".yaml"}


def texts(*folders: str) -> Iterator[tuple[Path, str]]:
    """Yield the text files of folders, and the pages beside them."""
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in KINDS and "_build" not in file.parts:
                yield file, file.read_text("utf-8")
    for file in sorted(ROOT.glob("*.md")):
        yield file, file.read_text("utf-8")


def test_pages_that_are_named_are_there() -> None:
    """Errors and remedies name pages, and no build of the documentation reads those."""
    found = [(file, name) for file, text in texts(*FOLDERS) for name in NAMED.findall(text)]
    of_roles = [
        (file, f"docs/{name}") for file, text in texts("hpccomm") for name in ROLE.findall(text)
    ]
    assert sum(ROOT / "hpccomm" in file.parents for file, _ in found) > 30
    assert len(of_roles) > 5
    missing = [f"{file}: {name}" for file, name in found if not (ROOT / name).is_file()]
    missing += [
        f"{file}: {name}"
        for file, name in of_roles
        if not any((ROOT / f"{name}{kind}").is_file() for kind in (".rst", ".md"))
    ]
    assert not missing


def test_relative_links_of_markdown_resolve() -> None:
    pages = {file: text for file, text in texts(*FOLDERS) if file.suffix == ".md"}
    links = [
        (file, *target.partition("#")[::2])
        for file, text in pages.items()
        for target in re.findall(r"\]\(([^)\s]+)\)", text)
        if not re.match(r"\w+:", target)
    ]
    assert len(links) > 20
    for file, target, place in links:
        to = (file.parent / target).resolve() if target else file
        assert to.exists(), f"{file}: {target}"
        words = re.findall(r"^#+ (.+)$", pages.get(to, ""), re.MULTILINE)
        headings = [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in words]
        assert not place or place in headings, f"{file}: {target}#{place}"


def test_the_picture_of_the_front_page_has_every_package() -> None:
    """Its truth is the contract of imports in ``pyproject.toml``."""
    picture = (ROOT / "docs/layers.svg").read_text("utf-8")
    shown = set(re.findall(r"\w+", " ".join(re.findall(r">([^<]+)</text>", picture))))
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    names = {name for layer in layers for name in re.findall(r"\w+", layer)}
    assert {name for name in names if (ROOT / "hpccomm" / name).is_dir()} <= shown
