"""NVIDIA's wheels: their files can be looked at without a driver."""

import importlib.util
from pathlib import Path


def folders(wheel: str) -> list[Path]:
    """Return the folders of an installed one, say ``nccl``."""
    found = importlib.util.find_spec("nvidia") and importlib.util.find_spec(f"nvidia.{wheel}")
    return list(map(Path, (found.submodule_search_locations if found else None) or ()))
