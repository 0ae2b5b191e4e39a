"""NCCL, through CuPy."""
