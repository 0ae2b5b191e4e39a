"""Runs Python in a process of its own, for tests that would spoil their process."""

import os
import subprocess
import sys
from typing import Any

LIMIT = 110.0
"""Seconds until a process of a test is killed: a busy machine fails no test, and pytest's own limit comes later."""


def python(
    *words: str | os.PathLike[str], timeout: float = LIMIT, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS`` with the options of `subprocess.run`; return it with the text of both streams."""
    command = [sys.executable, *map(os.fspath, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


def alone(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code that has ``cupy`` and ``np``, with variables added; return what came of it."""
    return python("-c", f"import cupy, numpy as np\n{code}", env=os.environ | environment)
