"""``hpccomm slurm`` writes a batch script for Slurm.

- `slurm` has the flags, the request that they make, and the text of the script. ``values.tsv`` has the patterns of
  the values that Slurm's flags take.
- ``launch.sh`` and ``run.sh`` are parts of every script: they choose how ranks start, and start them.
"""
