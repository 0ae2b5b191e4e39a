"""Pictures of a schedule: arrows between ranks, or text. For ``hpccomm plot --schedule``.

- `subject` makes the example call. `trace` follows each element of its arrays.
- `layout` places rounds and labels; `schedule` and `text` show them.
"""
