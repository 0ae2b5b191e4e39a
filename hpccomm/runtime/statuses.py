"""The exit statuses of a process that hpccomm ends, and of ``hpccomm VERB``. The one place for them."""

from enum import IntEnum


class Status(IntEnum):
    """Why a process has ended. ``sys.exit(n)`` of the program stays n."""

    DONE = 0
    """Done."""
    RAISED = 1
    """An exception was not caught. At the command line: done, and a result was wrong."""
    REFUSED = 2
    """At the command line: not done. Misuse, configuration, results file, communication, full output."""
    ENDED = 3
    """hpccomm ended the job, because its ranks could not go on: a deadline, a mismatch or a lost rank in a
    call that cannot be left, or a creation or finalisation that outlived its deadline."""
    INTERRUPTED = 130
    """SIGINT: interrupted from the keyboard."""
    UNREAD = 141
    """At the command line: what reads standard output has ended (``hpccomm show FILE | head``)."""
    TERMINATED = 143
    """SIGTERM."""
