"""Makes programs of a few lines of shell, in the place of others."""

from pathlib import Path


def script(path: Path, lines: str) -> Path:
    """Write a program of these lines of shell; return its path."""
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path
