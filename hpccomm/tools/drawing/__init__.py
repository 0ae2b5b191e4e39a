"""Pictures of a schedule: arrows between ranks, or text. For ``hpccomm plot --schedule``.

- `trace` makes the example call, and follows each element of its arrays.
- `layout` places rounds and labels; `schedule` and `text` show them.
"""
