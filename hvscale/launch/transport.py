"""What carries the messages: the library's own choice, or the one that the user names."""

from hvscale.errors import RequestError
from hvscale.run_folder import Library

LIBRARY_DECIDES = "auto"


def choose(library: Library, wanted: str | None) -> Library:
    """The library with the transport that `--transport` names. Raises RequestError for one that it was not built with."""
    if wanted is None:
        return library
    if wanted not in library.transports:
        known = f"it has {', '.join(library.transports)}" if library.transports else "it leaves no choice"
        raise RequestError(f"--transport {wanted}: not in {library.flavour} {library.version}; {known}")
    return library.model_copy(update={"transport": wanted})
