"""The documentation shows without a network: formulas are MathML, and nothing is loaded from elsewhere.

Its tables show without Sphinx.
"""

import json
import re
from pathlib import Path

import pytest
from alone import python

pytest.importorskip("sphinx", reason="the documentation's tools are not installed")

DOCS = Path(__file__).parents[2] / "docs"
MATHML = 'html_math_renderer = "mathml"\n'
CONF = f"""
import sys
sys.path.insert(0, {str(DOCS)!r})
extensions = ["formulas", "packages", "self_contained"]
{MATHML}"""
PAGE = """
Title
=====

A ring needs :math:`2(n-1)/n`, and a `link <https://example.org>`_ may lead anywhere.

.. math::

   \\alpha + \\frac{S}{\\beta}
"""


GOOD = f"""{PAGE}
:in-code:`hpccomm.runtime.waiting.drive`

.. import-contracts::
"""
NO_FORMULA = PAGE.replace("frac", "fraction")
BAD = f"""{PAGE}
:in-code:`hpccomm.runtime.waiting.no_such_name`

.. raw:: html

   <img src="//example.org/a.png">
   <script async src="https://example.org/mathjax.js"></script>
   <p style='background: url(http://a.b/c)'>
"""
BUILD = """
import contextlib, io, json, sys
from sphinx.cmd.build import build_main
done = {}
for folder in sys.argv[1:]:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        words = ["-n", "-W", "--keep-going", "-q", folder, folder + "/html"]
        done[folder] = build_main(words), said.getvalue()
print(json.dumps(list(done.values())))
"""


def test_what_does_not_show_everywhere_fails_the_build(tmp_path: Path) -> None:
    """A good page has formulas, files of names in the code, and contracts; each fault is a warning, and one is enough."""
    folders = [tmp_path / name for name in ("good", "no formula", "bad")]
    for folder, page in zip(folders, (GOOD, NO_FORMULA, BAD), strict=True):
        folder.mkdir()
        (folder / "conf.py").write_text(CONF)
        (folder / "index.rst").write_text(page)
    run = python("-c", BUILD, *folders, timeout=600)
    good, no_formula, bad = json.loads(run.stdout)
    assert good == [0, ""]
    page = (folders[0] / "html" / "index.html").read_text()
    assert page.count("<math ") == 2
    for shown in ("<mfrac>", "drive", "runtime/waiting.py"):
        assert shown in page
    for name in ("communicator", "calls", "runtime", "errors", "mpi4py"):
        assert f">{name}<" in page
    assert no_formula[0] != 0
    assert "fraction" in no_formula[1]
    assert bad[0] != 0
    for address in ("https://example.org/mathjax.js", "//example.org/a.png", "http://a.b/c"):
        assert f"WARNING: index.html loads {address}" in bad[1]
    missing = "there is no hpccomm.runtime.waiting.no_such_name in the code"
    assert re.search(rf"(WARNING|ERROR): {missing}", bad[1]), bad[1]


def test_the_documentation_uses_both() -> None:
    conf = (DOCS / "conf.py").read_text()
    assert MATHML in conf
    assert '"self_contained"' in conf


def test_the_tables_of_the_pages_are_as_the_code_has_them() -> None:
    """They are text, since a forge renders the pages by docutils alone."""
    # In a process of its own: other tests register algorithms.
    program = (
        "import runpy, sys; from pathlib import Path; docs = Path(sys.argv[1]); "
        "made = runpy.run_path(str(docs / 'tables.py'))['made']; "
        "print(*[p for p in docs.rglob('*.rst') if made(text := p.read_text('utf-8')) != text])"
    )
    done = python("-c", program, DOCS)
    stale = done.stdout.strip() or done.stderr
    assert not stale, "python docs/tables.py makes them anew"
