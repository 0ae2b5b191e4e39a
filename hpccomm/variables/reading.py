"""How a library reads the text of a variable, and where that is not what the text looks like."""

import re

from hpccomm.variables.tables import KnownVariable, fitting

_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TRUE = ("1", "t", "true", "y", "yes", "on", "enable", "enabled")
_FALSE = ("0", "f", "false", "n", "no", "off", "disable", "disabled")


def number(text: str) -> tuple[int, str]:
    """Return what C's ``strtoll`` with base 0 makes of a text, and the rest that it ignores."""
    found = _NUMBER.match(text)
    if not found:
        return 0, text
    sign, digits = found.groups()
    octal = digits[0] == "0" and digits[1:].isdigit()
    value = int(digits, 8 if octal else 0)
    return -value if sign == "-" else value, text[found.end() :]


def misfit(variable: KnownVariable, text: str) -> tuple[str, str, str]:
    """Return what is wrong with a value.

    Returns
    -------
    tuple of str
        The verdict, ``misread`` or ``misfit``; what is so; the value to give, or what would fit. Empty if all is well.
    """
    match variable.kind:
        case "int" | "switch":
            return _integer(variable, text)
        case "truth":  # NCCL 2.30, param/parser_default.h
            return _unless(text.lower() in (*_TRUE[:3], *_FALSE[:3]), variable)
        case "yesno":
            return _unless(text.strip().lower() in (*_TRUE, *_FALSE), variable)
        case "decimal":
            return _unless(bool(re.fullmatch(r"[0-9.]+", text.strip())), variable)
        case "size":
            right = re.fullmatch(r"(?i)auto|inf|\d+(\.\d+)?[kmgt]?i?b?", text.strip())
            return _unless(bool(right), variable)
        case "word" | "exact" | "words" | "functions":
            return _words(variable, text)
        case _:
            return "", "", ""


def _unless(right: bool, variable: KnownVariable) -> tuple[str, str, str]:
    if right:
        return "", "", ""
    after = f"goes by the default ({variable.default})" if variable.default else "ignores it"
    return "misfit", f"{variable.library} does not know this value, and {after}", variable.fits


def _integer(variable: KnownVariable, text: str) -> tuple[str, str, str]:
    value, rest = number(text)
    rest, plain = rest.strip(), text.strip()
    of = variable.library
    if rest:
        unit = re.fullmatch(r"(?i)([kmg])(i?b)?", rest)
        if plain.lower() in _FALSE and variable.kind == "switch":
            return "", "", ""  # 0, as it looks
        if plain.lower() in (*_TRUE, *_FALSE):
            right = "1" if plain.lower() in _TRUE else "0"
        elif unit and "bytes" in variable.fits:
            right = str(value * _SIZES[unit[1].upper()])
        elif plain.strip("'\"") != plain:
            right = plain.strip("'\"")
        else:
            right = str(value) if value else variable.fits
        off = " (off)" if variable.kind == "switch" and not value else ""
        return "misread", f"{of} reads {value}{off}: it ignores {rest!r}", right
    if re.fullmatch(r"[+-]?0[0-7]+", plain):
        return "misread", f"{of} reads {value}: a leading 0 makes it octal", str(int(plain))
    if not fitting(variable.fits, value):
        return "misfit", f"{of} reads {value}, which is out of range", variable.fits
    return "", "", ""


_FUNCTION = "(broadcast|reduce|allgather|reducescatter|allreduce)"


def _words(variable: KnownVariable, text: str) -> tuple[str, str, str]:
    fits = variable.fits.split(",")
    word = f"({'|'.join(map(re.escape, fits))})".replace(":N", ":[1-9][0-9]*")
    pattern = {
        "words": f"\\^?{word}([,|] *{word})*",
        "functions": f"({_FUNCTION}:)?\\^?{word}(,{word})*(;{_FUNCTION}:\\^?{word}(,{word})*)*",
    }.get(variable.kind, word)
    if re.fullmatch(pattern, text, 0 if variable.kind == "exact" else re.IGNORECASE):
        return "", "", ""
    alike = next((each for each in fits if each.lower() == text.lower()), variable.fits)
    pieces = [text] if pattern == word else re.split(r"[;:,|^]", text.removeprefix("^"))
    known = f"(?i) *({word}|{_FUNCTION})"
    wrong = next((each for each in pieces if not re.fullmatch(known, each)), text)
    after = f"it goes by the default ({variable.default})"
    if variable.kind == "functions":
        after = "an error since 2.24, and ignored before"
    return "misfit", f"{variable.library} does not know {wrong!r}: {after}", alike
