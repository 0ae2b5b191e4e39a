"""What ``import hpccomm`` costs beyond ``import numpy``.

Run it as it is::

    python benchmarks/import_time.py

The two take turns in fresh interpreters; the best of each counts.
"""

import argparse
import subprocess
import sys
import time


def seconds(statement: str) -> float:
    """Return how long a fresh interpreter takes for `statement`."""
    program = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    turns: int = parser.parse_args().turns
    begin = time.perf_counter()
    pairs = [
        (
            seconds("import numpy"),
            seconds("import numpy, hpccomm"),
            seconds("import numpy, hpccomm; hpccomm.new_comm"),
        )
        for _ in range(turns)
    ]
    numpy, hpccomm, used = (min(column) * 1e3 for column in zip(*pairs, strict=True))
    print(f"# best of {turns}, milliseconds ({time.perf_counter() - begin:.1f} s in all)")
    print(f"  import numpy                        {numpy:8.1f}")
    print(f"  import hpccomm beyond it            {hpccomm - numpy:8.1f}")
    print(f"  with new_comm looked up, beyond it  {used - numpy:8.1f}")


if __name__ == "__main__":
    main()
