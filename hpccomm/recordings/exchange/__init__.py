"""Recordings in other tools' forms: written for Perfetto and Chakra, and made of PyTorch's and NCCL's dumps."""
