"""Pictures: a schedule as arrows between ranks, and as text.

`trace` follows each element of the arrays through a schedule; `text` and `schedule` show the result.
"""
