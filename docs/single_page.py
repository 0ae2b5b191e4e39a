"""All pages as one file, for a cluster without a network: ``sphinx-build -b singlehtml``.

Sphinx leaves styles, scripts and pictures beside the page; here they are written into it.
"""

import base64
import re
from pathlib import Path

from sphinx.application import Sphinx


def whole(page: str, folder: Path) -> str:
    """Return a page with the files in it that it loads from `folder`."""

    def read(found: re.Match[str]) -> bytes:
        return (folder / found["file"].partition("?")[0]).read_bytes()

    for begin, end, tag in (
        ('<link rel="stylesheet"[^>]* href="', '"[^>]*>', "style"),
        ('<script src="', '"></script>', "script"),
    ):
        pattern = f'{begin}(?P<file>[^"]+){end}'
        page = re.sub(pattern, lambda f, tag=tag: f"<{tag}>{read(f).decode()}</{tag}>", page)
    return re.sub(
        r'src="(?P<file>_images/[^"]+\.svg)"',
        lambda f: f'src="data:image/svg+xml;base64,{base64.b64encode(read(f)).decode()}"',
        page,
    )


def name(
    app: Sphinx, _page: str, _template: str, context: dict[str, object], _tree: object
) -> None:
    """Give the page the title of all others, with the version."""
    context["docstitle"] = app.config.html_title


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the files into the page."""
    if error is None and app.builder.name == "singlehtml":
        page = Path(app.outdir) / "index.html"
        text = whole(page.read_text("utf-8"), page.parent)
        # The browser's own search finds words in one page; the theme's asks a page that is not there.
        hidden = "<style>.sidebar-search-container { display: none; }</style></head>"
        page.write_text(text.replace("</head>", hidden, 1), "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Do so when the build is finished."""
    app.connect("html-page-context", name)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
