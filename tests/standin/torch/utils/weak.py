"""Dictionaries that keep no tensor alive."""

from weakref import WeakKeyDictionary as WeakTensorKeyDictionary

__all__ = ["WeakTensorKeyDictionary"]
