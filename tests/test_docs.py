"""The documentation shows without a network: formulas are MathML, and nothing is loaded from elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the documentation's tools are not installed")

DOCS = Path(__file__).parents[1] / "docs"
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
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", folder, folder / "html"],
        capture_output=True,
        text=True,
    )


def test_formulas_are_in_the_page(tmp_path: Path) -> None:
    done = build(tmp_path, MATHML, PAGE)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "html" / "index.html").read_text()
    assert page.count("<math ") == 2
    assert "<mfrac>" in page
    assert "mathjax" not in page.lower()


def test_a_formula_that_cannot_be_shown_is_named(tmp_path: Path) -> None:
    done = build(tmp_path, MATHML, PAGE.replace("frac", "fraction"))
    assert done.returncode != 0
    assert "fraction" in done.stderr


@pytest.mark.parametrize(
    ("conf", "raw", "address"),
    [
        pytest.param(MATHJAX, "", "mathjax", id="Sphinx's own formulas"),
        pytest.param(
            MATHML, '<img src="//example.org/a.png">', "//example.org/a.png", id="picture"
        ),
        pytest.param(
            MATHML, "<p style='background: url(http://a.b/c)'>", "http://a.b/c", id="style"
        ),
    ],
)
def test_what_is_loaded_from_elsewhere_fails_the_build(
    tmp_path: Path, conf: str, raw: str, address: str
) -> None:
    done = build(tmp_path, conf, f"{PAGE}\n.. raw:: html\n\n   {raw}\n" if raw else PAGE)
    assert done.returncode != 0
    assert "index.html loads" in done.stderr
    assert address in done.stderr


def test_names_in_the_code_are_checked(tmp_path: Path) -> None:
    done = build(tmp_path, MATHML, ":in-code:`hpccomm.runtime.waiting.drive`")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "html" / "index.html").read_text()
    assert "drive" in page
    assert "runtime/waiting.py" in page

    done = build(tmp_path, MATHML, ":in-code:`hpccomm.runtime.waiting.no_such_name`")
    assert done.returncode != 0
    assert "there is no hpccomm.runtime.waiting.no_such_name in the code" in done.stderr


def test_contracts_are_drawn(tmp_path: Path) -> None:
    text = "Title\n=====\n\n.. import-contracts:: packages\n\n.. import-contracts:: modules\n"
    done = build(tmp_path, MATHML, text)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "html" / "index.html").read_text()
    for name in ("communicator", "dispatch", "runtime", "errors", "mpi4py"):
        assert f">{name}<" in page


def test_the_documentation_uses_both() -> None:
    conf = (DOCS / "conf.py").read_text()
    assert MATHML in conf
    assert '"self_contained"' in conf
