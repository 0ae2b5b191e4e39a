"""Tab in real shells: what bash and zsh complete once they have read the script."""

import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest
from damage import called
from until import HANGS_AFTER

pytest.importorskip("shtab")
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u; setopt no_list_beep; "),
}
COMPLETED = {
    "doct": "doctor ",
    "perf all_red": "perf all_reduce ",
    "perf pai": "perf pairs ",
    "perf all --arrays dev": "perf all --arrays device ",
    "perf all --algorithm halv": "perf all --algorithm halving_doubling ",
    "perf pairs --latency": "perf pairs --latency-threshold ",
    "compare mi": "compare mine.h5 ",
    "compare mine.h5 other.h5 --juni": "compare mine.h5 other.h5 --junit ",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes(shell, tmp_path):
    command, before = SHELLS[shell]
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(called("completion", shell)[1], "utf-8")
    (tmp_path / "mine.h5").touch()
    terminal, other = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *command],
        stdin=other,
        stdout=other,
        stderr=other,
        cwd=tmp_path,
        env=os.environ | {"TERM": "dumb", "HOME": str(tmp_path)},
    )
    os.close(other)
    shown = ""

    def write_and_see(text, awaited):
        nonlocal shown
        shown, deadline = "", time.monotonic() + HANGS_AFTER
        os.write(terminal, text.encode())
        while not re.search(awaited, shown):
            assert time.monotonic() < deadline, f"{text!r}: {shown!r}"
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 1 << 16).decode(errors="replace")

    try:
        write_and_see(f'PS1="> "; {before}eval "$(cat script)"; echo re""ady\n', "ready\r\n")
        for typed, completed in COMPLETED.items():
            write_and_see(f"hpccomm {typed}\t", re.escape(f"hpccomm {completed}"))
            write_and_see("\x15", "")  # Ctrl-U empties the line
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
