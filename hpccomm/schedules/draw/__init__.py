"""Pictures: a schedule as arrows between ranks, and as text.

What is drawn is what the schedule does. `trace` follows each element of the arrays through it,
`text` and `schedule` show that.
"""
