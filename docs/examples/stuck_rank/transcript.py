"""Make the transcript that the documentation shows: a job with a stuck rank, on hosts made of namespaces.

``python docs/examples/stuck_rank/transcript.py`` runs ``train.py`` on four ranks of three hosts, then
``hpccomm explain``, and writes both outputs into ``docs/measured/stuck-rank.txt``; with ``-`` it prints
them. It needs what ``jobs/virtual_cluster.sh`` needs, and ends with its status where that cannot be had.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[2]
TRANSCRIPT = CHECKOUT / "docs" / "measured" / "stuck-rank.txt"
JOB = ("--nodes", "3", "--ranks-per-node", "1,2,1")
UNAVAILABLE = 77


def main() -> int:
    """Run both, and write what they said."""
    with tempfile.TemporaryDirectory() as folder:
        told = transcript(Path(folder))
    if sys.argv[1:] == ["-"]:
        sys.stdout.write(told)
    else:
        TRANSCRIPT.write_text(told, encoding="utf-8")
    return 0


def transcript(folder: Path) -> str:
    """Return what a person sees who runs both commands in `folder`."""
    python = sys.executable
    there = 'cd "$0" && exec "$@"'
    job = subprocess.run(
        [
            *("bash", CHECKOUT / "jobs" / "virtual_cluster.sh", *JOB, "--"),
            *("sh", "-c", there, folder, python, HERE / "train.py"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"HPCCOMM_DUMP_DIR": "hpccomm-dumps"},  # which is the default
    )
    if job.returncode == UNAVAILABLE:
        sys.stderr.write(job.stderr)
        raise SystemExit(UNAVAILABLE)
    explained = subprocess.run(
        [python, "-m", "hpccomm", "explain", "hpccomm-dumps"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    # The launcher has much to say of its own.
    own = ("hpccomm: ", "the last calls are")
    said = [line.strip() for line in job.stderr.splitlines() if line.strip().startswith(own)]
    return "\n".join(
        [
            f"$ bash jobs/virtual_cluster.sh {' '.join(JOB)} -- python train.py",
            *said,
            "$ echo $?",
            str(job.returncode),
            "$ hpccomm explain hpccomm-dumps",
            explained.stdout + explained.stderr,
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
