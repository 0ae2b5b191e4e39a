"""The arguments of ``hpccomm tune``."""

import pytest

from hpccomm.tools.main import main


def test_one_rank_has_nothing_to_choose(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCCOMM_BACKEND", "loopback")
    assert main(["tune"]) == 2
    assert "there is but one rank" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["magic"], "'magic' is not a collective"),
        (["--seconds", "0"], "is not a time"),
        (["--segments", "64K,0"], "nothing would move"),
        (["-b", "1M", "-e", "1K"], "give sizes that ascend"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, said, capsys):
    assert main(["tune", *arguments]) == 2
    assert said in capsys.readouterr().err
