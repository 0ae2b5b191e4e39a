"""Packages of others: what pip leaves of one, so that its entry points are found as those of any."""

from collections.abc import Mapping
from pathlib import Path


def announce(folder: Path, package: str, group: str, entries: Mapping[str, str]) -> None:
    """Write the metadata of an installed package with entry points, beside which its modules lie."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
