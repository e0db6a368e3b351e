"""What is installed only where it is asked for: `pip install 'meshax[train]'`, and the other extras.

The language, the reports and the plans need JAX and a few small packages. Whatever else is needed is imported where it
is first used, inside of `extra`, which says what to install if it is not there.
"""

import contextlib
import importlib.util
from collections.abc import Iterator

from .errors import MeshaxError


class ExtraError(MeshaxError, ImportError):
    """A package that only some of meshax needs is not installed."""


@contextlib.contextmanager
def extra(name: str, things: str) -> Iterator[None]:
    """Says which extra to install when an import inside of it fails.

    Args:
        name: the extra that has the package, as in `meshax[train]`.
        things: what needs it, in the plural.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise _missing(name, things, package) from None


def check_extra(name: str, things: str, package: str) -> None:
    """Raises if a package is missing that is imported much later."""
    if importlib.util.find_spec(package) is None:
        raise _missing(name, things, package)


def _missing(name: str, things: str, package: str) -> ExtraError:
    return ExtraError(f"{things} need {package}.", fix=f"pip install 'meshax[{name}]'.")
