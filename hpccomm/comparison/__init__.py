"""Two sets of launches compared: whether the new one is slower, faster, or the same, and how sure that is.

- `launches` reads the runs of a side, and has their rows by case.
- `matching` matches the cases of two sides, and gives one value for each launch and case.
- `statistics` tests two samples of launches.
- `verdict` puts both together, for all cases.
- `crossovers` finds where one curve of times overtakes another.
- `text` and `machine_readable` write the verdicts down.
"""
