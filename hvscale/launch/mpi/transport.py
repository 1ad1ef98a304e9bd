"""What carries the messages: the library's own choice, or the one that the user names."""

from typing import TYPE_CHECKING

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library

if TYPE_CHECKING:
    from hvscale.launch.flavours import Flavour

LIBRARY_DECIDES = "auto"


def choose(flavour: "Flavour", library: Library, wanted: str | None, environment: dict[str, str]) -> Library:
    """The library with the transport that `--transport` names. Raises RequestError for one that it was not built with."""
    if wanted is None:
        return library
    built_with = flavour.transports(library, environment)
    if wanted not in built_with:
        known = f"it has {', '.join(built_with)}" if built_with else "it leaves no choice"
        raise RequestError(f"--transport {wanted}: not in {library.flavour} {library.version}; {known}")
    return library.model_copy(update={"transport": wanted, "transports": built_with})
