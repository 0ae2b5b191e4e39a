"""Pieces of an array, dealt to channels."""

from typing import NamedTuple


class Pieces(NamedTuple):
    """Pieces of an array that are dealt to channels.

    Attributes
    ----------
    pieces : int
        Of the channel that has most: they run one after the other.
    elements : int
        Of that channel's pieces together.
    total : int
        Elements of all pieces.
    channels : int
        How many channels have pieces.
    all_pieces : int
        Pieces of all channels.
    """

    pieces: int
    elements: int
    total: int
    channels: int
    all_pieces: int

    @property
    def piece(self) -> float:
        """Elements of a piece, on average over the channel that has most."""
        return self.elements / self.pieces

    @property
    def mean(self) -> float:
        """Elements of a piece, on average over all."""
        return self.total / self.all_pieces


def deal(count: int, piece: int, channels: int) -> Pieces:
    """Deal `count` elements, cut into pieces of `piece`, to `channels` in turn."""
    if count <= piece:
        return Pieces(1, count, count, 1, 1)
    pieces = -(-count // piece)
    most = -(-pieces // channels)
    # The first channel has most pieces; the last piece, which may be short, may be its own.
    short = pieces * piece - count if (pieces - 1) % channels == 0 else 0
    return Pieces(most, most * piece - short, count, min(pieces, channels), pieces)
