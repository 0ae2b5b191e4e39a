"""Figures and their files. This module loads matplotlib, and only when something is drawn."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpccomm.errors import ConfigurationError, UsageError
from hpccomm.extras import install_command
from hpccomm.files.regular import check_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "png")


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of that many inches.

    Raises
    ------
    ConfigurationError
        If matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(
            f"pictures are drawn by matplotlib, which cannot be loaded ({error}); "
            f"install it: {install_command('plot')}"
        ) from error
    return Figure(figsize=(width, height), facecolor="white")


def file_format(path: Path) -> str:
    """Return the format that a file's name ends in.

    Raises
    ------
    UsageError
        If it is not one of `FORMATS`.
    """
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise UsageError(f"{path} does not say what to draw; let its name end in .svg or .png")
    return ending


def check_place(path: Path) -> None:
    """Raise what `save` would raise for this path, as far as that is known before the work.

    Raises
    ------
    UsageError
        If the name ends in neither .svg nor .png, its folder does not exist, or it cannot be written
        there.
    """
    file_format(path)
    folder = path.parent
    if not folder.is_dir():
        what = "is not a directory" if folder.exists() else "does not exist"
        raise UsageError(
            f"cannot write {path}: {folder} {what}; make the directory, or choose another path for "
            "the picture"
        )
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a directory; name a file in it")
    try:
        check_output(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another path") from None
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(
            f"cannot write {path}: permission denied; choose another path for the picture"
        )


def rendered(figure: "Figure", ending: str, *, resolution: float = 150.0) -> bytes:
    """Return the picture as the bytes of a file; the same figure gives the same bytes as SVG.

    Parameters
    ----------
    figure : Figure
        What to draw.
    ending : str
        One of `FORMATS`.
    resolution : float
        Dots per inch of a PNG.
    """
    from matplotlib import rc_context

    file = io.BytesIO()
    # Without a salt the ids of parts are random. Text stays text, so that files are small and can be
    # searched.
    with rc_context({"svg.hashsalt": "hpccomm", "svg.fonttype": "none"}):
        if ending == "svg":
            figure.savefig(file, format="svg", metadata={"Date": None})
        else:
            figure.savefig(file, format="png", dpi=resolution)
    return file.getvalue()


def save(figure: "Figure", path: Path) -> None:
    """Write a picture, over an older one of that name.

    Raises
    ------
    UsageError
        If the name ends in neither .svg nor .png, or it cannot be written there.
    """
    picture = rendered(figure, file_format(path))
    try:
        check_output(path)
        path.write_bytes(picture)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}; choose another path for the picture"
        ) from error
