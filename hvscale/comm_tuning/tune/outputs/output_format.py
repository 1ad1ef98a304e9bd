"""A file that a study writes, and the list of all of them."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from hvscale.comm_tuning.tune.outputs.tuned_job import TunedJob


def always(tuned: TunedJob) -> bool:
    return True


@dataclass(frozen=True)
class OutputFormat:
    """One file. `what`: what it is, in a few words; `use`: the words of the shell that feed it to its library, empty where there are none."""

    file: str
    what: str
    text: Callable[[TunedJob], str]
    applies: Callable[[TunedJob], bool] = always
    use: Callable[[TunedJob], str] = lambda tuned: ""


_outputs: dict[str, OutputFormat] = {}


def register(output: OutputFormat) -> None:
    _outputs[output.file] = output


@cache
def outputs() -> list[OutputFormat]:
    """All that are known, by name."""
    from hvscale.comm_tuning.tune.outputs import formats

    for module in pkgutil.iter_modules(formats.__path__):
        importlib.import_module(f"{formats.__name__}.{module.name}")
    return [_outputs[name] for name in sorted(_outputs)]
