"""Escapes texts for XML documents such as SVG, and what programs read."""

import re

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_text(text: str) -> str:
    """Return a text with U+FFFD for each character that XML does not allow: control characters, half surrogates."""
    return _NOT_XML.sub("\ufffd", text)
