"""`hpccomm plot`."""

import sys
from pathlib import Path

import pytest

from hpccomm.tools.main import main


def test_the_picture_goes_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(
        sys.modules, "vl_convert", None
    )  # a schedule in SVG or text needs no library
    assert main(["plot", "--schedule", "ring", "--ranks", "3", "--text"]) == 0
    assert "round 0: 0→1 [2:3]" in capsys.readouterr().out
    assert main(["plot", "--schedule", "ring", "--ranks", "4"]) == 0
    assert capsys.readouterr().out == (
        "ring all_reduce: 4 ranks, 4 elements: 6 rounds, 24 messages, "
        "a rank sends at most 6 elements\ndrawn in ring-all_reduce-4.svg\n"
    )
    assert (tmp_path / "ring-all_reduce-4.svg").read_bytes().rstrip().endswith(b"</svg>")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    for name, start in (("a.PNG", b"\x89PNG"), ("b.svg", b"<svg")):
        command = ["plot", "--schedule", "linear", "--collective", "gather", "--root", "2"]
        assert main([*command, "--output", name]) == 0
        assert f"drawn in {name}" in capsys.readouterr().out
        assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (
            "ring --ranks 4 --count 8 --segment 2 --channels 2",
            "ring-all_reduce-4-count8-segment2-channels2",
        ),
        ("linear --ranks 3 --root 0", "linear-gather-3-root0"),
        ("linear --ranks 3 --nodes 2 --deterministic", "linear-all_reduce-3-nodes2-deterministic"),
    ],
)
def test_the_name_of_the_picture_says_what_was_given(
    given: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", "--schedule", *given.split()]) == 0
    assert [file.name for file in tmp_path.iterdir()] == [f"{name}.svg"]
