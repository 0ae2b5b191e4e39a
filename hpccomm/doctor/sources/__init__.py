"""Where facts of a node come from: one module a source, each with ``gather(root) -> dict``."""
