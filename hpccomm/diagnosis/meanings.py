"""What the errors and exit statuses of hpccomm mean: the one table of ``hpccomm explain`` and the docs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a message means.

    Attributes
    ----------
    name : str
        A class of `hpccomm.errors`, an exit status, or what a library says.
    meaning : str
        A sentence.
    causes : tuple of str
        The usual ones, the most frequent first.
    remedies : tuple of str
        What to do.
    """

    name: str
    meaning: str
    causes: tuple[str, ...]
    remedies: tuple[str, ...]


TABLE: tuple[Explanation, ...] = (
    Explanation(
        "CollectiveTimeout",
        "A call was not done at its deadline. The communicator has failed; later calls on it raise "
        "CommunicatorAborted.",
        (
            "A rank never made the call: it is in other code, in a call of another communicator, or "
            "its process has ended.",
            "A rank made another call, or this one with other arguments.",
            "A rank is slower than the deadline allows: it reads files, compiles, or its node is ill.",
        ),
        (
            "Read who is named in the message (and in the attribute ranks) and where it is.",
            "Run `hpccomm explain` on the directory of the dumps: it joins what all ranks recorded.",
            "If that rank only needs longer, give timeout= to the call or set HPCCOMM_TIMEOUT.",
        ),
    ),
    Explanation(
        "RankMismatch",
        "Ranks called different things as the same collective. Nothing was returned.",
        (
            "A branch of the program depends on the rank or on data that differ: one rank skips a "
            "call, or makes one more.",
            "Counts or dtypes differ: blocks were cut unevenly, or one rank computes in another "
            "precision.",
            "Reduction, root or algorithm differ.",
        ),
        (
            "Compare the values in the message, which stand side by side with the places in the "
            "program.",
            "If a call was left out, look at what comes before it; `hpccomm explain` on the dumps says "
            "from which collective on the ranks differ.",
            "HPCCOMM_CHECK=all compares every call while you look for it.",
        ),
    ),
    Explanation(
        "PeerLost",
        "The process of another rank is gone.",
        (
            "It was killed: by the kernel for memory, by the batch system, or by a signal.",
            "It ended with an error of its own, or left by os._exit.",
            "Its node or the network to it failed.",
        ),
        (
            "Look at that rank's output and at the kernel's and the batch system's messages on its node.",
            "To go on without it, start the job with a fault-tolerant MPI (mpiexec --with-ft ulfm under "
            "Open MPI) and call shrink().",
        ),
    ),
    Explanation(
        "CommunicatorAborted",
        "The communicator failed or was aborted before this call; it is not the first error.",
        (
            "An earlier call of this rank, or of another thread, failed, and the program went on.",
            "The program called abort(), or left a `with` block by an exception.",
            "The process was forked: a communicator belongs to the process that made it.",
        ),
        (
            "Look for the first error, which the message names.",
            "Make a new communicator (new_comm, or shrink() after a lost rank).",
        ),
    ),
    Explanation(
        "CommunicationError",
        "Something went wrong between ranks, and none of the more precise classes fits it.",
        ("The MPI library or NCCL reported an error of its own; the message quotes it.",),
        ("Read the library's words in the message; run `hpccomm explain` on the dumps.",),
    ),
    Explanation(
        "UsageError",
        "An argument is wrong. Nothing was sent, and the communicator goes on.",
        (
            "An array is not contiguous, a name is misspelt, a rank does not exist.",
            "Two threads call one communicator at the same time.",
        ),
        ("The message says what would fit.",),
    ),
    Explanation(
        "BufferMismatch",
        "An array, or a message that arrived, does not have the size or dtype that fits.",
        (
            "Sender and receiver disagree on count or dtype.",
            "out has another number of elements than the result.",
        ),
        ("Make both sides agree; the message has both sizes.",),
    ),
    Explanation(
        "UnsupportedDtype",
        "The dtype cannot be communicated, or its pair with the reduction means nothing.",
        ("BAND of floats, MAX of complex numbers, objects in an array.",),
        ("Convert the array, or choose another reduction.",),
    ),
    Explanation(
        "ConfigurationError",
        "A setting or the environment is wrong, or differs between ranks.",
        (
            "An HPCCOMM_* variable has a value that does not fit, or is exported on some nodes only.",
            "Ranks run different versions of hpccomm.",
        ),
        (
            "Correct what the message names; export variables to all ranks (mpiexec -x, srun --export).",
        ),
    ),
    Explanation(
        "BackendUnavailable",
        "A backend that was asked for by name cannot run here.",
        ("CuPy or NCCL is not installed, there is no device, or the driver is too old.",),
        ('Install what the message names, or let backend="auto" choose.',),
    ),
    Explanation(
        "LaunchError",
        "The job was started in a way that cannot work.",
        (
            "The launcher belongs to another MPI library than mpi4py: each process believes that it is "
            "alone.",
            "A rank did not reach creation in time.",
        ),
        ("Start with the launcher of the same MPI library; see the page on launching.",),
    ),
    Explanation(
        "ResultsError",
        "A results file cannot be written or read.",
        ("The disk is full, the path is wrong, or the file is damaged.",),
        ("Do what the message says; `hpccomm show` gives what is left of a damaged file.",),
    ),
    Explanation(
        "SchemaMismatch",
        "A file has another layout than this version reads.",
        ("Another version of hpccomm wrote it, or another program.",),
        ("Read it with the version that wrote it.",),
    ),
    Explanation(
        "MPI_ERR_TRUNCATE",
        "A message was longer than the array that was to receive it.",
        ("The ranks disagree on the count: see RankMismatch and BufferMismatch.",),
        ("HPCCOMM_CHECK=all finds the call; `hpccomm explain` on the dumps shows the counts.",),
    ),
    Explanation(
        "MPI_ERR_PROC_FAILED",
        "A process of the communicator is gone, and the MPI library noticed: see PeerLost.",
        ("A rank was killed, or its node failed.",),
        ("Look at that rank's output and its node; under ULFM call shrink() to go on.",),
    ),
    Explanation(
        "status 1",
        "A Python exception that nobody caught ended the job (or, of a verb of the command line, a "
        "result was wrong).",
        ("The traceback of that rank stands in the output.",),
        ("Find the first traceback; the other ranks were ended because of it.",),
    ),
    Explanation(
        "status 2",
        "The command line was used wrongly, a setting is wrong, or a file cannot be read.",
        ("The message says what was given and what would fit.",),
        ("Add --help to the command.",),
    ),
    Explanation(
        "status 3",
        "hpccomm ended the job, since its ranks could not go on: a deadline passed, ranks differed or a "
        "rank was gone while others sat in a call of the library that cannot be left.",
        ("The causes of CollectiveTimeout, RankMismatch and PeerLost.",),
        ("Run `hpccomm explain` on the directory of the dumps.",),
    ),
    Explanation(
        "status 130", "The job was interrupted from the keyboard.", ("Ctrl-C.",), ("None.",)
    ),
    Explanation(
        "status 141",
        "What read the standard output of a verb of the command line has ended.",
        ("A pipe into head or less.",),
        ("None.",),
    ),
    Explanation(
        "status 143",
        "The job was asked to end (SIGTERM).",
        ("The batch system's time limit, scancel, or a person.",),
        ("Ask for more time, or save the state before the limit.",),
    ),
)
"""Classes first, then what libraries say, then exit statuses."""


def matching(text: str) -> list[Explanation]:
    """Return what a text names, in the order in which it names them: a class, a status, a message."""
    words = text.strip()
    if words.isdigit():
        words = f"status {words}"
    found = []
    for each in TABLE:
        name = re.escape(each.name).replace(r"\ ", r"(?:\s+code)?\s+")
        at = re.search(rf"(?<!\w){name}(?!\w)", words, re.IGNORECASE)
        if at is not None:
            found.append((at.start(), each))
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def lines(explanations: Sequence[Explanation]) -> list[str]:
    """Return explanations as text."""
    text = []
    for each in explanations:
        text += [each.name, f"  {each.meaning}", "  usual causes:"]
        text += [f"    - {cause}" for cause in each.causes]
        text += ["  what to do:", *(f"    - {remedy}" for remedy in each.remedies), ""]
    return text[:-1]
