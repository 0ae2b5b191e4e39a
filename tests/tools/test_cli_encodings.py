"""The command line where its streams, its paths and its host have letters of another encoding."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from alone import python
from damage import called

RAW = "läuft-→-".encode() + b"\xfc\xff"
"""The name of a file that is no text in any encoding of UTF-8 and ASCII."""

AS_TEXT = "läuft-→-\\xfc\\xff"

# Runs commands one after another, each on streams as a process in this environment has them.
PROGRAM = """
import io, json, socket, sys
from hpccomm.tools.main import main

socket.gethostname = lambda: "kn\\xf6ten\\u4e2d"
done = []
for words in json.load(sys.stdin):
    sys.argv = ["hpccomm", *words]
    streams = [io.TextIOWrapper(io.BytesIO(), each.encoding, each.errors) for each in (sys.__stdout__, sys.__stderr__)]
    sys.stdout, sys.stderr = streams
    try:
        status = main(words)
    except SystemExit as leaving:
        status = leaving.code
    except Exception as error:
        status = repr(error)
    for stream in streams:
        stream.flush()
    done.append([status, *(stream.buffer.getvalue().decode("latin1") for stream in streams)])
print(json.dumps(done), file=sys.__stdout__)
"""

LOG = Path(__file__).parent / "runs" / "logs" / "data" / "latin1.txt"
"""Whose hosts have letters of another encoding."""

LINES = Path(__file__).with_name("any_text.txt").read_text("utf-8").splitlines()[2:]
COMMANDS = {line[2:]: int(line[0]) for line in LINES}


@pytest.mark.slow("all verbs, with SciPy and pictures")
def test_every_verb_takes_any_text_in_ascii(tmp_path):
    """With the paths of POSIX (any bytes), and Python's escapes (PEP 383, ``backslashreplace``)."""
    name = os.fsdecode(RAW)
    (tmp_path / f"{name}.log").write_text(LOG.read_text("latin-1"), encoding="utf-8")
    # What stands in the program's arguments is bytes, which Python decodes there.
    commands = [
        [word.replace("@", RAW.decode("ascii", "surrogateescape")) for word in words.split()]
        for words in COMMANDS
    ]
    variables = os.environ | {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    given = json.dumps(commands)
    done = python("-c", PROGRAM, input=given, timeout=120, cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr
    answers = dict(zip(COMMANDS, json.loads(done.stdout), strict=True))
    assert {words: status for words, (status, *_) in answers.items()} == COMMANDS
    for words, (_, out, err) in answers.items():
        assert (out + err).isascii(), words
        assert "Traceback" not in err, words
    plain = "l\\xe4uft-->-\\xfc\\xff"
    assert "kn\\xf6ten\\u4e2d" in answers[next(iter(COMMANDS))][1]
    assert plain in answers["show @.h5"][1]
    assert "n\\xf6de-a" in answers["show @-imported.h5"][1]
    assert f"written to {plain}.html\n" in answers["report @.h5 --base @.h5 --any-machine"][1]
    assert "0->1 [" in answers["plot --schedule ring --ranks 4 --text"][1]
    assert plain in answers["show @"][2]
    # What was stored is text, and files have the names that were given.
    status, shown, _ = called("show", str(tmp_path / f"{name}.h5"))
    assert (status, f"--output '{AS_TEXT}.h5'" in shown) == (0, True)
    kept = json.loads((tmp_path / f"{name}.json").read_bytes())
    assert f"{AS_TEXT}.h5" in kept["args"]
    assert "läuft" in (tmp_path / f"{name}.html").read_text(encoding="utf-8")
    # A batch script goes through the stream as what bash reads as these bytes.
    script = answers["slurm perf --ntasks 4 --module @ all_reduce --output @.h5"][1]
    (line,) = (line for line in script.splitlines() if line.startswith("results="))
    said = subprocess.run(["bash", "-c", f'{line}; printf %s "$results"'], capture_output=True)
    assert said.stdout == RAW + b".h5"
