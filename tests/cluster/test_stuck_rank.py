"""The stuck rank of the documentation: the stored transcript equals the job's output today."""

import os
import re
import sys
from pathlib import Path

import pytest
from alone import python

CHECKOUT = Path(__file__).parents[2]
STORED = CHECKOUT / "docs" / "measured" / "stuck-rank.txt"
SCRIPT = CHECKOUT / "docs" / "examples" / "stuck_rank" / "transcript.py"
UNAVAILABLE = 77


def sentence(transcript: str) -> str:
    """Return what `hpccomm explain` says first: who is missing, and where."""
    said = " ".join(transcript.partition("hpccomm explain hpccomm-dumps\n")[2].split())
    (found,) = re.findall(r"^Rank .*? of communicator 'world'\.", said)
    return found


def test_the_stored_sentence_is_the_promised_one() -> None:
    assert sentence(STORED.read_text("utf-8")) == (
        "Rank 3 on node host2 is in step(), train.py line 41, and has not called all_reduce #1207 of "
        "communicator 'world'."
    )


@pytest.mark.thorough
def test_the_transcript_can_be_made_anew(launcher: str) -> None:
    environment = os.environ | {"HPCCOMM_MPIEXEC": launcher, "HPCCOMM_VENV": sys.prefix}
    done = python(SCRIPT, "-", timeout=200, env=environment)
    if done.returncode == UNAVAILABLE:
        pytest.skip(" ".join(done.stderr.split()))
    stored = STORED.read_text("utf-8")
    assert sentence(done.stdout) == sentence(stored), done.stdout + done.stderr
    late = "has not called all_reduce #1207; ranks 0-2 wait in it"
    for words in ("rank 3 on node host2 (pid", late):
        assert words in done.stdout
        assert words in stored
    assert "$ echo $?\n3\n" in done.stdout
