"""What the groups of `Communicator` methods have in common."""

from hpccomm.communicator.engine import Engine


class Face:
    """Public methods, each of which calls the engine that works behind them."""

    _engine: Engine
