"""Batch scripts for Slurm, for `hpccomm slurm`.

- `directives` describes the resources that a script requests. `script` writes its text.
"""
