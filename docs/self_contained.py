"""Checks of the build: no page loads anything from another host, and each link leads somewhere.

Pages must show without a network. Links that a reader clicks may lead to other hosts, which no build asks; here they
have a host. Scripts, styles, fonts and pictures must lie beside the pages.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from sphinx.application import Sphinx
from sphinx.util import logging

LOADING = ("src", "srcset", "data", "poster")
"""Attributes whose address a browser loads by itself; on other tags than ``a``, ``href`` as well."""
ADDRESS = re.compile(r"\s*(https?:)?//", re.IGNORECASE)
IN_A_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?\s*((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


class _Page(HTMLParser):
    """Collects the addresses in other places that one page loads, its links, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.foreign = IN_A_STYLE.findall(text)
        self.links: list[str] = []
        self.places = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loading = LOADING if tag == "a" else (*LOADING, "href")
        self.foreign += [
            value for name, value in attrs if name in loading and value and ADDRESS.match(value)
        ]
        self.links += [value for name, value in attrs if (tag, name) == ("a", "href") and value]
        self.places |= {value for name, value in attrs if name == "id" and value}


def foreign(folder: Path, pages: dict[str, _Page]) -> Iterator[tuple[str, str]]:
    """Yield each page or style sheet under `folder` with an address elsewhere that it loads."""
    for page, read in pages.items():
        yield from ((page, address) for address in read.foreign)
    for file in sorted(folder.rglob("*.css")):
        for address in IN_A_STYLE.findall(file.read_text("utf-8")):
            yield file.relative_to(folder).as_posix(), address


def broken(folder: Path, pages: dict[str, _Page]) -> Iterator[tuple[str, str]]:
    """Yield each page with a link that leads to no page, file or place, or to an address without a host."""
    for page, read in pages.items():
        for link in read.links:
            parts = urlsplit(link)
            if parts.scheme:
                whole = parts.hostname if parts.scheme in ("http", "https") else parts.path
            else:
                file, place = urldefrag(urljoin(page, unquote(link)))
                whole = place in pages[file].places if file in pages else (folder / file).is_file()
            if not whole:
                yield page, link


def check(app: Sphinx, error: Exception | None) -> None:
    """Warn of what is loaded from elsewhere, and of links to nowhere; with ``-W`` the build fails."""
    if error is not None or app.builder.format != "html":
        return
    folder, logger = Path(app.outdir), logging.getLogger(__name__)
    pages = {
        file.relative_to(folder).as_posix(): _Page(file.read_text("utf-8"))
        for file in sorted(folder.rglob("*.html"))
    }
    for page, address in foreign(folder, pages):
        logger.warning(
            "%s loads %s, which a browser without a network cannot reach; put a copy beside it",
            page,
            address,
        )
    for page, link in broken(folder, pages):
        logger.warning("%s has a link to %s, where nothing is", page, link)


def setup(app: Sphinx) -> dict[str, bool]:
    """Check each build when it is finished."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
