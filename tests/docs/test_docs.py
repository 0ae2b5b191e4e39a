"""The documentation shows without a network: formulas are MathML, nothing is loaded from elsewhere, links lead somewhere.

Its tables show without Sphinx.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from alone import python

from hpccomm.tools.main import VERBS

pytest.importorskip("sphinx", reason="the documentation's tools are not installed")

DOCS = Path(__file__).parents[2] / "docs"
MATHML = 'html_math_renderer = "mathml"\n'
CONF = f"""
import sys
sys.path.insert(0, {str(DOCS)!r})
extensions = ["sphinx_singlehtml_anchors", "formulas", "packages", "single_page", "self_contained"]
{MATHML}"""
PAGE = """
Title
=====

A ring needs :math:`2(n-1)/n`, and a `link <https://example.org>`_ may lead anywhere.

.. math::

   \\alpha + \\frac{S}{\\beta}
"""


GOOD = f"""{PAGE}
.. image:: layers.svg

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
   <a href="index.html#nowhere">nowhere</a> <a href="none.html">no page</a> <a href="https:///path">no host</a>
"""
BUILD = """
import contextlib, io, json, sys
from sphinx.cmd.build import build_main
done = {}
for builder, folder in zip(sys.argv[1::2], sys.argv[2::2]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        words = ["-n", "-W", "--keep-going", "-q", "-b", builder, folder, folder + "/" + builder]
        done[folder, builder] = build_main(words), said.getvalue()
print(json.dumps(list(done.values())))
"""


def test_what_does_not_show_everywhere_fails_the_build(tmp_path: Path) -> None:
    """A good page has formulas, files of names in the code, and contracts; each fault is a warning, and one is enough."""
    folders = [tmp_path / name for name in ("good", "no formula", "bad")]
    for folder, page in zip(folders, (GOOD, NO_FORMULA, BAD), strict=True):
        folder.mkdir()
        (folder / "conf.py").write_text(CONF)
        (folder / "index.rst").write_text(page)
    shutil.copy(DOCS / "layers.svg", folders[0])
    builds = [word for folder in folders for word in ("html", folder)]
    run = python("-c", BUILD, *builds, "singlehtml", folders[0], timeout=600)
    good, no_formula, bad, single = json.loads(run.stdout)
    assert good == single == [0, ""]
    whole = (folders[0] / "singlehtml" / "index.html").read_text()
    assert 'src="data:image/svg+xml;base64,' in whole
    assert not re.search(r'(src|stylesheet[^>]* href)="(?!data:)', whole)
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
    for link in ("index.html#nowhere", "none.html", "https:///path"):
        assert f"WARNING: index.html has a link to {link}, where nothing is" in bad[1]
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


def test_the_man_pages_are_right_to_the_program_that_shows_them(tmp_path: Path) -> None:
    pytest.importorskip("argparse_manpage")
    if not (mandoc := shutil.which("mandoc")):
        pytest.skip("mandoc is not installed (Debian: mandoc)")
    python(DOCS / "man.py", tmp_path, check=True)
    pages = sorted(tmp_path.glob("*.1"))
    names = {"hpccomm"} | {f"hpccomm-{verb.replace(' ', '-')}" for verb in VERBS}
    assert {page.stem for page in pages} == names

    def run(*words: str) -> str:
        return subprocess.run([mandoc, *words], capture_output=True, text=True, check=False).stdout

    assert run("-T", "lint", "-W", "warning", *map(str, pages)) == ""
    shown = re.sub(
        "-\n +", "-", run("-T", "ascii", "-O", "width=200", str(tmp_path / "hpccomm-perf-pairs.1"))
    )
    for said in (
        "HPCCOMM-PERF-PAIRS(1)",
        VERBS["perf pairs"].summary,
        "threshold",
        "mpiexec -n 8 hpccomm perf pairs\n",
    ):
        assert said in shown
