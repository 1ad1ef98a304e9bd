"""A registry: things of one kind by name, each in a file of one package that registers itself."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Generic, TypeVar

from hvscale.core.errors import RequestError
from hvscale.core.suggest import suggest_name

Item = TypeVar("Item")


class Registry(Generic[Item]):
    """Things of one kind by name. `package` holds a file for each; adding one changes no other file.

    A file is imported when its thing is asked for, all files when the names are: `get("docker:rank")` imports `docker.py` alone, so that
    starting a command does not load what it does not use.
    """

    def __init__(self, what: str, package: str) -> None:
        """`what`: the word for one of them in messages, such as "placement"; `package`: the full name of the package with the files."""
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
        """The one of this name. Raises RequestError, suggesting the nearest name, for an unknown one.

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
            for file in self._files():
                importlib.import_module(f"{self.package}.{file}")
            self._is_complete = True
        return dict(sorted(self._items.items()))

    def _import_file_of(self, name: str) -> None:
        file = name.partition(":")[0].replace("-", "_")
        if file in self._files():
            importlib.import_module(f"{self.package}.{file}")

    def _files(self) -> list[str]:
        path = importlib.import_module(self.package).__path__
        return [module.name for module in pkgutil.iter_modules(path)]
