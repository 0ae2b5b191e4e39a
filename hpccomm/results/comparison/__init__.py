"""Compares two sets of launches: whether the new one is slower, and how sure that is.

- `matching` reads the runs of each side, groups their rows by case, matches the cases of two sides, and gives one value for each launch and case.
- `statistics` tests two samples of launches.
- `verdict` applies the test to all cases.
- `crossovers` finds the sizes at which one curve of times overtakes another.
- `text` writes the verdicts: a table, JSON, JUnit.

`hpccomm compare` and `hpccomm report` call it, and so does ``perf --interleave``.
"""
