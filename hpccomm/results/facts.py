"""Facts of runs and recordings as JSON, and back.

They are dataclasses of texts, numbers, times and each other. The writers store them as such JSON,
and `reader` reads them.
"""

import dataclasses
import functools
from collections.abc import Mapping
from datetime import datetime
from typing import Any, get_args, get_origin, get_type_hints

from hpccomm.results.regular import as_utf8


def as_json(value: Any) -> Any:
    """Return a fact as JSON; a dataclass becomes an object of its fields."""
    match value:
        case str():
            return as_utf8(value)
        case datetime():
            return value.isoformat()
        case Mapping():
            return {as_utf8(key): as_json(each) for key, each in value.items()}
        case tuple() | list():
            return [as_json(each) for each in value]
    if dataclasses.is_dataclass(value):
        return {name: as_json(getattr(value, name)) for name in _hints(type(value))}  # type: ignore[arg-type]
    return value


def of_json(kind: Any, value: Any) -> Any:
    """Return the fact of a type that `as_json` has made this of. A field that lacks has its default.

    Raises
    ------
    TypeError, ValueError, AttributeError
        If it has another form.
    """
    if kind is datetime:
        return datetime.fromisoformat(value)
    if hints := _hints(kind):
        given = {name: of_json(hints[name], each) for name, each in value.items() if name in hints}
        return kind(**given)
    if get_origin(kind) is tuple:
        return tuple(of_json(get_args(kind)[0], each) for each in value)
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields; nothing for another type."""
    return get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
