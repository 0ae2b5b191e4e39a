"""Environment variables of NCCL and the libraries below it: their meaning, and wrong values.

The tables are data: a file for each library, a line for each variable. `judging` is pure, and reads a
value as the library does: all verdicts of this process are ``judge_all(settings(), here())``, with the
facts of `machine`. `tables` also writes settings for a machine.

`hpccomm env` prints the verdicts; the NCCL backend logs the bad ones.
"""
