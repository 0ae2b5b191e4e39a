"""``hpccomm slurm`` writes a batch script for Slurm.

- `slurm` has the flags, the request that they make, and the text of the script.
- ``launch.sh`` and ``run.sh`` are parts of every script: they choose how ranks start, and start them.
"""
