"""NVIDIA's management library on a machine with made-up GPUs."""

from nvml_double import nvml

__all__ = ["nvml"]
