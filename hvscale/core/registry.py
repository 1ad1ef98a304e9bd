"""Registries of plug-ins by name, each in a file that registers itself."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Generic, TypeVar

from hvscale.core.errors import HvscaleError, RequestError
from hvscale.core.suggest import suggest_name

Item = TypeVar("Item")
PLUGINS = "hvscale_plugins"


class Registry(Generic[Item]):
    """Items of one kind by name. `package` has a file for each; adding one changes no other file.

    A file whose name starts with `_` is a part of another one and registers nothing.

    Plug-ins are files of the same path below `hvscale_plugins/` instead of `hvscale/`, in any
    folder that Python imports from (PYTHONPATH, site-packages). `get`, `names` and `all` raise
    RequestError for a plug-in with the file name of one of hvscale's own files.

    `get("docker:rank")` imports only `docker.py`, so that a command starts fast; `names` and `all`
    import every file.
    """

    def __init__(self, what: str, package: str) -> None:
        """`what`: the word for an item in messages, such as "placement". `package`: its name."""
        self.what = what
        self.package = package
        self._items: dict[str, Item] = {}
        self._is_complete = False

    def register(self, name: str, item: Item) -> Item:
        """Register `item` as `name`. Raises ValueError if the name is taken."""
        if self._items.setdefault(name, item) is not item:
            raise ValueError(f"two files of {self.package} register the {self.what} {name!r}")
        return item

    def registering(self, name: str) -> Callable[[Item], Item]:
        """Return a decorator that registers a class or function."""
        return lambda item: self.register(name, item)

    def get(self, name: str, option: str = "") -> Item:
        """Return the item. Raises RequestError, with the nearest name, if it is unknown.

        `option`: the option that the name was given for, such as --placement; starts the message.
        """
        if name not in self._items:
            self._import_file_of(name)
        if name not in self._items and name not in self.all():
            raise RequestError(f"{f'{option} ' if option else ''}{name}: {suggest_name(self.what, name, self.names())}")
        return self._items[name]

    def names(self) -> list[str]:
        return sorted(self.all())

    def all(self) -> dict[str, Item]:
        """Return all items by name, sorted."""
        if not self._is_complete:
            for module in self._modules().values():
                load(module)
            self._is_complete = True
        return dict(sorted(self._items.items()))

    def _import_file_of(self, name: str) -> None:
        module = self._modules().get(name.partition(":")[0].replace("-", "_"))
        if module is not None:
            load(module)

    def _modules(self) -> dict[str, str]:
        """Return the full module names by file name, the package's own first."""
        plugins = f"{PLUGINS}{self.package.removeprefix('hvscale')}"
        own, added = files_in(self.package), files_in(plugins)
        for file in own.keys() & added.keys():
            raise RequestError(
                f"{path_of(added[file])}: hvscale has a file of this name, {path_of(own[file])}: rename the plug-in and the "
                f"{self.what} in it"
            )
        return {
            file: f"{package}.{file}" for package, files in ((self.package, own), (plugins, added)) for file in files
        }


def load(module: str) -> None:
    """Import a module. Raises RequestError if it is a plug-in that cannot be imported."""
    try:
        importlib.import_module(module)
    except Exception as error:
        if not module.startswith(f"{PLUGINS}.") or isinstance(error, HvscaleError):
            raise
        raise RequestError(f"{module}: the plug-in cannot be loaded: {type(error).__name__}: {error}") from error


def files_in(package: str) -> dict[str, pkgutil.ModuleInfo]:
    """Return a package's modules by name; none if there is no such package."""
    try:
        path = importlib.import_module(package).__path__
    except ModuleNotFoundError as error:
        if error.name is not None and f"{package}.".startswith(f"{error.name}."):
            return {}
        raise
    return {module.name: module for module in pkgutil.iter_modules(path) if not module.name.startswith("_")}


def path_of(module: pkgutil.ModuleInfo) -> str:
    spec = module.module_finder.find_spec(module.name, None)
    return module.name if spec is None or spec.origin is None else spec.origin
