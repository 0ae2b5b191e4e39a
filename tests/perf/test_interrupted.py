"""An interrupted run says what it has stored."""

import pytest

from hpccomm.bench.perf.report import Report
from hpccomm.cli.main import main
from hpccomm.results import reader, table


def test_an_interrupted_run_says_how_many_rows_are_kept(tmp_path, capfd, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Report, "finish", interrupted)
    path = tmp_path / "runs.h5"
    words = "perf all_reduce --backend loopback -b 8 -e 16 -f 2 -n 2 -w 0 --output"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hpccomm.backends.bootstrap.shutdown.installed", lambda: False)
        assert main([*words.split(), str(path)]) == 130
    (run,) = reader.read(path)
    assert (len(run.rows), run.status) == (4, "failed: interrupted")
    said = f"hpccomm: 4 rows are kept in {path} as run0001: see hpccomm show {path}\n"
    printed = capfd.readouterr()
    assert printed.err.count(said) == 1
    rows = table.tallied(run.rows)
    assert printed.out.endswith(table.footer(rows, "all_reduce", interrupted=True))
    assert "# Collective test interrupted: all_reduce\n" in printed.out
