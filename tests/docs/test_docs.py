"""The documentation shows without a network: formulas are MathML, and nothing is loaded from elsewhere.

Its tables show without Sphinx.
"""

import re
import subprocess
from pathlib import Path

import pytest
from alone import python

pytest.importorskip("sphinx", reason="the documentation's tools are not installed")

DOCS = Path(__file__).parents[2] / "docs"
MATHML = 'html_math_renderer = "mathml"\n'
MATHJAX = 'html_math_renderer = "mathjax"\n'
CONF = f"""
import sys
sys.path.insert(0, {str(DOCS)!r})
extensions = ["formulas", "packages", "self_contained"]
"""
PAGE = """
Title
=====

A ring needs :math:`2(n-1)/n`, and a `link <https://example.org>`_ may lead anywhere.

.. math::

   \\alpha + \\frac{S}{\\beta}
"""


def build(folder: Path, conf: str, page: str) -> subprocess.CompletedProcess[str]:
    (folder / "conf.py").write_text(CONF + conf)
    (folder / "index.rst").write_text(page)
    return python(
        "-m", "sphinx", "-n", "-W", "--keep-going", "-q", folder, folder / "html", timeout=600
    )


GOOD = f"""{PAGE}
:in-code:`hpccomm.runtime.waiting.drive`

.. import-contracts::
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a page that uses all of it, as it is built."""
    folder = tmp_path_factory.mktemp("docs")
    done = build(folder, MATHML, GOOD)
    assert done.returncode == 0, done.stderr
    return (folder / "html" / "index.html").read_text()


def test_formulas_are_in_the_page(page: str) -> None:
    assert page.count("<math ") == 2
    assert "<mfrac>" in page
    assert "mathjax" not in page.lower()


def test_names_in_the_code_show_their_file(page: str) -> None:
    assert "drive" in page
    assert "runtime/waiting.py" in page


def test_contracts_are_drawn(page: str) -> None:
    for name in ("communicator", "calls", "runtime", "errors", "mpi4py"):
        assert f">{name}<" in page


def test_a_formula_that_cannot_be_shown_is_named(tmp_path: Path) -> None:
    done = build(tmp_path, MATHML, PAGE.replace("frac", "fraction"))
    assert done.returncode != 0
    assert "fraction" in done.stderr


BAD = f"""{PAGE}
:in-code:`hpccomm.runtime.waiting.no_such_name`

.. raw:: html

   <img src="//example.org/a.png">
   <p style='background: url(http://a.b/c)'>
"""


def test_what_is_loaded_from_elsewhere_and_names_that_are_not_there_fail_the_build(
    tmp_path: Path,
) -> None:
    """Each of them is a warning, and one is enough to fail."""
    done = build(tmp_path, MATHJAX, BAD)  # Sphinx's own formulas load their program from elsewhere
    assert done.returncode != 0
    for address in ("https?:\\S*mathjax", "//example.org/a.png", "http://a.b/c"):
        assert re.search(rf"WARNING: index.html loads {address}", done.stderr), done.stderr
    missing = "there is no hpccomm.runtime.waiting.no_such_name in the code"
    assert re.search(rf"(WARNING|ERROR): {missing}", done.stderr), done.stderr


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
