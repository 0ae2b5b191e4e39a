"""Reads the text of a variable as its library does, and finds texts that it misreads.

`judging` asks it.
"""

import re

from hpccomm.variables.tables import KnownVariable, fitting

Fault = tuple[str, str, str]
"""A verdict, its reason, and what to do."""

_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TRUE, _FALSE = "1|t|true|y|yes|on|enabled?", "0|f|false|n|no|off|disabled?"
_FUNCTION = "(broadcast|reduce|allgather|reducescatter|allreduce)"
_PATTERNS = {
    "truth": "1|t|true|0|f|false",  # NCCL 2.30, param/parser_default.h
    "yesno": rf"\s*({_TRUE}|{_FALSE})\s*",
    "decimal": r"\s*[0-9.]+\s*",
    "size": r"\s*(auto|inf|\d+(\.\d+)?[kmgt]?i?b?)\s*",
    "word": "WORD",
    "exact": "WORD",
    "words": r"\^?WORD([,|] *WORD)*",
    "functions": rf"({_FUNCTION}:)?\^?WORD(,WORD)*(;{_FUNCTION}:\^?WORD(,WORD)*)*",
}
"""Form of the texts of a kind; WORD stands for one of the permitted words."""


def number(text: str) -> tuple[int, str]:
    """Return the number that C's ``strtoll`` with base 0 reads, and the ignored rest."""
    match = _NUMBER.match(text)
    if not match:
        return 0, text
    sign, digits = match.groups()
    octal = digits[0] == "0" and digits[1:].isdigit()
    value = int(digits, 8 if octal else 0)
    return -value if sign == "-" else value, text[match.end() :]


def misfit(variable: KnownVariable, text: str) -> Fault | None:
    """Return the fault of a value, ``misread`` or ``misfit``, with advice; None without a fault."""
    if variable.kind in ("int", "switch"):
        return _integer(variable, text)
    fits = variable.fits.split(",")
    word = f"({'|'.join(map(re.escape, fits))})".replace(":N", ":[1-9][0-9]*")
    pattern = _PATTERNS.get(variable.kind, "(?s:.*)").replace("WORD", word)
    if re.fullmatch(pattern, text, 0 if variable.kind == "exact" else re.IGNORECASE):
        return None
    several = variable.kind in ("words", "functions")
    pieces = re.split(r"[;:,|^]", text.removeprefix("^")) if several else [text]
    known = f"(?i) *({word}|{_FUNCTION})"
    wrong = next((each for each in pieces if not re.fullmatch(known, each)), text)
    words = f"{variable.library} does not know {wrong!r}"
    if variable.kind == "functions":
        words += ": an error since 2.24, and ignored before"
    elif variable.library == "NCCL":
        words += f": it goes by the default ({variable.default})"
    alike = next((each for each in fits if each.lower() == text.lower()), variable.fits)
    return "misfit", words, _advice(variable, alike)


def _integer(variable: KnownVariable, text: str) -> Fault | None:
    value, rest = number(text)
    rest, plain = rest.strip(), text.strip().lower()
    false = re.fullmatch(_FALSE, plain)
    reads = f"{variable.library} reads {value}"
    if rest and not (false and variable.kind == "switch"):  # that is 0, as it looks
        unit = re.fullmatch(r"([kmg])(i?b)?", rest.lower())
        if false or re.fullmatch(_TRUE, plain):
            right = "0" if false else "1"
        elif unit and "bytes" in variable.fits:
            right = str(value * _SIZES[unit[1]])
        else:
            bare = plain.strip("'\"")
            right = bare if bare != plain else str(value) if value else variable.fits
        off = " (off)" if variable.kind == "switch" and not value else ""
        words = f"{reads}{off}: it ignores {rest!r}"
        return "misread", words, _advice(variable, right)
    if re.fullmatch(r"[+-]?0[0-7]+", plain):
        words = f"{reads}: a leading 0 makes it octal"
        return "misread", words, _advice(variable, str(int(plain)))
    if fitting(variable.fits, value):
        return None
    return "misfit", f"{reads}, which is out of range", _advice(variable, variable.fits)


def _advice(variable: KnownVariable, right: str) -> str:
    single = not re.search("[ ,]", right)
    return f"{variable.name}={right}" if single else f"give one of {right}"
