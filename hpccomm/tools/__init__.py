"""What the command ``hpccomm`` does. `main` finds a verb by ``verbs.tsv``; a verb lives with its tool.

- `flags` describes flags, reads them, and has those that several verbs have. `output` is what verbs print.
- `drawing` makes pictures and charts.
- The packages: `perf`, `tune`, `simulate` and `slurm` measure, `runs` reads results, `doctor` and `explain` find faults,
  `programs` understands recorded programs.
"""
