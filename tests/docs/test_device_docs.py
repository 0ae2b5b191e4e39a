"""The examples of docs/how_to/devices.rst run, on the stand-in for CuPy."""

import re
import textwrap
from pathlib import Path

from conftest import Mpiexec

ROOT = Path(__file__).parents[2]


def examples() -> list[str]:
    page = (ROOT / "docs/how_to/devices.rst").read_text(encoding="utf-8")
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", page, re.MULTILINE)
    return [textwrap.dedent(block) for block in blocks]


def test_the_examples_run(mpiexec: Mpiexec, tmp_path: Path) -> None:
    first, *others = examples()
    assert len(others) >= 4
    program = tmp_path / "program.py"
    inner = "\n".join(
        [
            "cupy.cuda.Device(comm.device).use()",
            *others,
            "assert (y.get() == comm.size).all(), y.get()",
        ]
    )
    text = f"{first}\nwith hpccomm.new_comm() as comm:\n{textwrap.indent(inner, '    ')}\n"
    program.write_text(text, encoding="utf-8")
    environment = {"PYTHONPATH": str(ROOT / "tests/standin"), "STANDIN_DEVICES": "2"}
    done = mpiexec(2, program, env=environment)
    assert done.returncode == 0, done.stderr
    assert "over nccl" in done.stdout
