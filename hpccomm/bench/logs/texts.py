"""The text of a log, whatever it was packed or encoded as."""

import bz2
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable

from hpccomm.errors import ResultsError

_PACKED: dict[bytes, tuple[str, Callable[[bytes], bytes] | None]] = {
    b"\x1f\x8b": ("gzip", gzip.decompress),
    b"BZh": ("bzip2", bz2.decompress),
    b"\xfd7zXZ": ("xz", lzma.decompress),
    b"\x28\xb5\x2f\xfd": ("Zstandard", None),
    b"PK\x03\x04": ("zip", None),
    b"\x89HDF": ("an HDF5 file", None),
    b"\x7fELF": ("a program", None),
}
"""What a file begins with, its name, and what unpacks it."""

_MARKS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
"""Marks of an encoding, the longer first; Windows puts them before the first line."""

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|\0")
"""Colours and other commands of a terminal, and the holes that a file system leaves in a log of a lost node."""


_OF_DOCKER = re.compile(r'^\{"log": ?("(?:[^"\\]|\\.)*")', re.MULTILINE)
"""A line that a container has printed, as Docker keeps it."""


def decoded(data: bytes, name: str) -> tuple[str, str]:
    """Return the text of a log, and what it was packed or encoded as; empty for plain text.

    Bytes that are no UTF-8, such as an umlaut in a host's name, become escapes.

    Raises
    ------
    ResultsError
        If it is packed by a program that is not known here, or damaged.
    """
    found = []
    for magic, (packed, unpack) in _PACKED.items():
        if data.startswith(magic):
            if unpack is None:
                raise ResultsError(f"{name} is no text: it is {packed}; give the log itself")
            try:
                data = unpack(data)
            except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
                raise ResultsError(
                    f"{name} is {packed}, and damaged: {error}; give the log itself"
                ) from error
            found.append(packed)
    encoding = next((each for mark, each in _MARKS.items() if data.startswith(mark)), "utf-8")
    if encoding == "utf-8" and data[:64].count(0) > len(data[:64]) // 3:
        encoding = "utf-16-be" if data[:1] == b"\0" else "utf-16-le"
    if not encoding.startswith("utf-8"):
        found.append(encoding.upper())
    text = data.decode(encoding, "backslashreplace" if encoding.startswith("utf-8") else "replace")
    if _OF_DOCKER.match(text):
        found.append("Docker's JSON")
        text = "".join(map(_unquoted, _OF_DOCKER.findall(text)))
    return _CONTROL.sub("", text), ", ".join(found)


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:  # a damaged line stays as it is
        return f"{text[1:-1]}\n"
