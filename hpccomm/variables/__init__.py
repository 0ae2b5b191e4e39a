"""Environment variables of NCCL and of what lies below it: what they mean, and what is wrong with those that are set.

The tables are data: a file for each library, a line for each variable. `judging` is pure: all verdicts of this process
are ``judge_all(settings(), here())``, with what `machine` says.
"""
