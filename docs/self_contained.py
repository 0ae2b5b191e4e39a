"""A check of the build: no page loads anything from another host, so that all show without a network.

Links that a reader clicks may lead anywhere. Scripts, styles, fonts and pictures must lie beside the pages.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

LOADING = ("src", "srcset", "data", "poster")
"""Attributes whose address a browser loads by itself; on other tags than ``a``, ``href`` as well."""
ADDRESS = re.compile(r"\s*(https?:)?//", re.IGNORECASE)
IN_A_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?\s*((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


class _Page(HTMLParser):
    """Collects the addresses in other places that one page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.foreign = IN_A_STYLE.findall(text)
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loading = LOADING if tag == "a" else (*LOADING, "href")
        self.foreign += [
            value for name, value in attrs if name in loading and value and ADDRESS.match(value)
        ]


def foreign(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each page or style sheet under `folder` with an address elsewhere that it loads."""
    for file in sorted(folder.rglob("*")):
        if file.suffix == ".html":
            addresses = _Page(file.read_text("utf-8")).foreign
        elif file.suffix == ".css":
            addresses = IN_A_STYLE.findall(file.read_text("utf-8"))
        else:
            continue
        for address in addresses:
            yield file.relative_to(folder).as_posix(), address


def check(app: Sphinx, error: Exception | None) -> None:
    """Warn of what is loaded from elsewhere; with ``-W`` the build fails."""
    if error is None and app.builder.format == "html":
        for page, address in foreign(Path(app.outdir)):
            logging.getLogger(__name__).warning(
                "%s loads %s, which a browser without a network cannot reach; put a copy beside it",
                page,
                address,
            )


def setup(app: Sphinx) -> dict[str, bool]:
    """Check each build when it is finished."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
