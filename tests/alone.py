"""Runs Python code in a process of its own, for tests that would spoil their process."""

import os
import subprocess
import sys


def alone(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code that has ``cupy`` and ``np``, with variables added; return what came of it."""
    return subprocess.run(
        [sys.executable, "-c", "import cupy, numpy as np\n" + code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
