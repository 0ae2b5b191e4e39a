"""Writes pictures to files, as SVG or PNG. The verbs with ``--output`` call it."""

import os
from pathlib import Path

from hpccomm.drawing import vega
from hpccomm.errors import UsageError
from hpccomm.files.regular import check_output, no_folder

FORMATS = ("svg", "png")

PIXELS = 2
"""Of a PNG, for each one of the SVG."""


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
        If the name ends in neither .svg nor .png, its folder does not exist, or the file cannot be
        written there.
    ConfigurationError
        If it is to be a PNG, and the library is missing.
    """
    if file_format(path) == "png":
        vega.library()
    if why := no_folder(path):
        raise UsageError(why)
    try:
        check_output(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another path") from None
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(
            f"cannot write {path}: permission denied; choose another path for the picture"
        )


def rendered(svg: str, ending: str) -> bytes:
    """Return a picture as the bytes of a file.

    Parameters
    ----------
    svg : str
        The picture, a document of SVG.
    ending : str
        One of `FORMATS`.

    Raises
    ------
    ConfigurationError
        If it is to be a PNG, and the library is missing.
    """
    if ending == "svg":
        return svg.encode()
    return bytes(vega.library().svg_to_png(svg, scale=PIXELS))


def save(svg: str, path: Path) -> None:
    """Write a picture, a document of SVG, over an older one of that name.

    Raises
    ------
    UsageError
        If the name ends in neither .svg nor .png, or it cannot be written there.
    ConfigurationError
        If it is to be a PNG, and the library is missing.
    """
    content = rendered(svg, file_format(path))
    try:
        check_output(path)
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}; choose another path for the picture"
        ) from error
