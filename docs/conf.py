"""How Sphinx builds the documentation: ``sphinx-build -n -W docs docs/_build/html``."""

import os
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "examples"))

import hpccomm

HERE = Path(__file__).parent

project = "hpccomm"
author = "The hpccomm developers"
version = release = hpccomm.__version__
html_title = f"hpccomm {release}"

extensions = [
    "myst_parser",  # the changelog is Markdown
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",  # for its role autolink
    "sphinx.ext.doctest",
    "sphinx_singlehtml_anchors",
    "formulas",
    "packages",
    "pictures",
    "single_page",
    "self_contained",  # looks at what the others have written
]
exclude_patterns = ["_build", "measured"]  # these are parts of a page
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_search_scorer = str(HERE / "search.js")
toc_object_entries_show_parents = "hide"
# Each page ends with the date of the commit, which jobs/docs.sh passes on; two builds of it are the same.
html_last_updated_fmt = "%Y-%m-%d" if "SOURCE_DATE_EPOCH" in os.environ else None
html_copy_source = False
# No page loads anything from elsewhere: clusters often have no way out.
html_math_renderer = "mathml"
html_show_copyright = False
html_show_sphinx = False
pygments_style = "default"

# A name in single backticks is a link if it names something, else it is an argument.
default_role = "autolink"

# Types stand in the text of docstrings, with shapes and units.
autodoc_typehints = "none"
nitpick_ignore = [
    # Attributes of slotted dataclasses: they stand in lists of attributes, which have no anchors.
    *(("py:obj", name) for name in ("function", "min_size", "start", "shared", "launch")),
    *(("py:obj", name) for name in ("rank", "peer", "buffer", "count", "members")),
    *(("py:obj", name) for name in ("source", "sources", "target", "timeout")),
    # Names that a docstring finds in its own module, as the page that shows it does not.
    *(("py:obj", name) for name in ("Request", "SEND", "RECV", "SCRATCH", "whole")),
    *(
        ("py:obj", name)
        for name in ("Unproven", "prove", "build", "ByMessages", "InMemory", "ranks")
    ),
    *(("py:obj", name) for name in ("ANSWERED", "GONE", "STOPPED", "SILENT")),
    # Types that aliases stand for, written out by autodoc; Python's documentation is not linked.
    *(("py:class", f"collections.abc.{name}") for name in ("Callable", "Iterator", "Mapping")),
    *(("py:class", f"numpy.{name}") for name in ("ndarray", "dtype")),
    ("py:class", "numpy._typing._array_like.NDArray"),  # as NumPy 2.5 names it
]
autodoc_mock_imports = ["jax", "torch"]  # what only one page needs is not installed
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

# Examples run on threads as ranks; nothing here needs MPI.
doctest_global_setup = """
import numpy as np
import hpccomm
from hpccomm.testing import run_ranks
"""


CONSTRUCTED = {hpccomm.CommOptions}
"""Classes that users make themselves. All others come from calls, and show no constructor."""


def without_constructor(
    _app: Sphinx,
    what: str,
    _name: str,
    obj: object,
    _options: object,
    signature: str | None,
    *_: object,
) -> tuple[str, None] | None:
    if what not in ("class", "exception") or obj in CONSTRUCTED or signature is None:
        return None
    return "", None


def without_second_names(_app: Sphinx, page: nodes.document, _name: str) -> None:
    """The theme puts each table into a container that has the table's names again."""
    for container in page.findall(nodes.container):
        if "table-wrapper" in container["classes"]:
            container["ids"] = []


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", without_constructor, priority=400)
    app.connect("doctree-resolved", without_second_names)
