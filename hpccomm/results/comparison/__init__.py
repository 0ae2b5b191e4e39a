"""Compares two sets of launches: whether the new one is slower, and how sure that is.

- `matching` reads the runs of each side, groups their rows by case, matches the cases of two sides, and gives one value for
  each launch and case.
- `verdict` tests the two samples of each case, judges all of them, and prints the verdicts.
"""

from hpccomm.errors import ConfigurationError
from hpccomm.spelling import install_command


def require_scipy(what: str) -> None:
    """Raise if SciPy, which `what` needs, is missing.

    Raises
    ------
    ConfigurationError
        If it cannot be imported.
    """
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"{what} needs SciPy ({error}): {install_command('stats')}"
        ) from None
