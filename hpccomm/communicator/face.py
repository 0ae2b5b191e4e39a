"""What the groups of `Communicator` methods have in common."""

from hpccomm.communicator.core import Core


class Face:
    """Public methods, which work on what all of them share."""

    _core: Core
