"""One clock for all ranks, which says when each of them started and ended an operation.

- `offsets` bounds how far one clock is ahead of another, from messages that carry its time.
- `common` lets every rank read the clock of rank 0, through a tree of such pairs.
"""
