"""The text of a log, decoded and unpacked.

`hpccomm.bench.logs.reading` begins with it.
"""

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
"""The first bytes of a packed file, its format, and its unpacker."""

_MARKS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
"""Marks of an encoding, the longer first; Windows puts them before the first line."""

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|\0")
"""Colors and other commands of a terminal, and the holes that a file system leaves in a log of a lost node."""


_OF_A_LINE = ("log", "msg", "message", "MESSAGE")
"""Keys of the printed text in logs of one JSON object a line: Docker's, loggers', journald's."""


def decoded(data: bytes, name: str) -> tuple[str, str]:
    """Return the text of a log, and its packing or encoding; empty for plain text.

    Bytes outside UTF-8, such as an umlaut in a host's name, become escapes.

    Raises
    ------
    ResultsError
        If it is packed by a program that is not known here, or damaged.
    """
    packings = []
    for magic, (packed, unpack) in _PACKED.items():
        if data.startswith(magic):
            if unpack is None:
                raise ResultsError(f"{name} is not text: it is {packed}; give the log itself")
            try:
                data = unpack(data)
            except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
                raise ResultsError(
                    f"{name} is {packed}, and damaged: {error}; give the log itself"
                ) from error
            packings.append(packed)
    encoding = next((each for mark, each in _MARKS.items() if data.startswith(mark)), "utf-8")
    if encoding == "utf-8" and data[:64].count(0) > len(data[:64]) // 3:
        encoding = "utf-16-be" if data[:1] == b"\0" else "utf-16-le"
    if not encoding.startswith("utf-8"):
        packings.append(encoding.upper())
    text = data.decode(encoding, "backslashreplace" if encoding.startswith("utf-8") else "replace")
    if _within(text.partition("\n")[0]) is not None:
        packings.append("lines in JSON")
        lines = [line if (inner := _within(line)) is None else inner for line in text.splitlines()]
        text = "\n".join(line.removesuffix("\n") for line in lines)
    return _CONTROL.sub("", text), ", ".join(packings)


def _within(line: str) -> str | None:
    """Return the printed text of a line that is such an object; None for a damaged one."""
    try:
        value = json.loads(line, strict=False)
    except (ValueError, RecursionError):
        return None
    printed = [value.get(key) for key in _OF_A_LINE] if isinstance(value, dict) else []
    return next((each for each in printed if isinstance(each, str)), None)
