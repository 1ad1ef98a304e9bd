"""A registry: things of one kind by name, each in a file of one package that registers itself."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Generic, TypeVar

from hvscale.core.errors import RequestError
from hvscale.core.suggest import suggest_name

Item = TypeVar("Item")


class Registry(Generic[Item]):
    """Things of one kind by name. `package` holds a file for each; adding one changes no other
    file.

    A file whose name begins with `_` is a part of another one and registers nothing.

    A file of the same path below `hvscale_plugins/` instead of `hvscale/`, in any folder that
    Python imports from (PYTHONPATH, site-packages), counts as one of the package's.

    A file is imported when its name is asked for, all files when the names are:
    `get("docker:rank")` imports `docker.py` alone, so that starting a command does not load what it
    does not use.
    """

    def __init__(self, what: str, package: str) -> None:
        """`what`: the word for one of them in messages, such as "placement"; `package`: the full
        name of the package with the files.
        """
        self.what = what
        self.package = package
        self._items: dict[str, Item] = {}
        self._is_complete = False

    def register(self, name: str, item: Item) -> Item:
        """Make `item` known as `name`. Raises ValueError for a name that another file has taken."""
        if self._items.setdefault(name, item) is not item:
            raise ValueError(f"two of {self.package} register the {self.what} {name!r}")
        return item

    def registering(self, name: str) -> Callable[[Item], Item]:
        """Decorator: registers a class or function."""
        return lambda item: self.register(name, item)

    def get(self, name: str, option: str = "") -> Item:
        """The one of this name. Raises RequestError, suggesting the nearest name, for an unknown
        one.

        `option`: what the user typed the name for, such as --placement; the message begins with it.
        """
        if name not in self._items:
            self._import_file_of(name)
        if name not in self._items and name not in self.all():
            raise RequestError(f"{f'{option} ' if option else ''}{name}: {suggest_name(self.what, name, self.names())}")
        return self._items[name]

    def names(self) -> list[str]:
        return sorted(self.all())

    def all(self) -> dict[str, Item]:
        """Each by its name, in the names' order."""
        if not self._is_complete:
            for module in self._modules().values():
                importlib.import_module(module)
            self._is_complete = True
        return dict(sorted(self._items.items()))

    def _import_file_of(self, name: str) -> None:
        module = self._modules().get(name.partition(":")[0].replace("-", "_"))
        if module is not None:
            importlib.import_module(module)

    def _modules(self) -> dict[str, str]:
        """The full names of the modules, by their files' names; the package's own file wins."""
        packages = [self.package.replace("hvscale", "hvscale_plugins", 1), self.package]
        return {file: f"{package}.{file}" for package in packages for file in files_in(package)}


def files_in(package: str) -> list[str]:
    """The names of a package's modules; none when there is no such package."""
    try:
        path = importlib.import_module(package).__path__
    except ModuleNotFoundError as error:
        if error.name is not None and f"{package}.".startswith(f"{error.name}."):
            return []
        raise
    return [module.name for module in pkgutil.iter_modules(path) if not module.name.startswith("_")]
