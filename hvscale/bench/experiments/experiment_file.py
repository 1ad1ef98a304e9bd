"""experiment.toml: what a study measures, in small and at its full size, and what it claims."""

import functools
import operator
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from hvscale.bench.experiments.entries import ENTRIES, Entry
from hvscale.bench.experiments.statements import STATEMENTS, Statement
from hvscale.core.errors import RequestError
from hvscale.core.suggest import suggest_name

PARTS = ("small", "full")
SELECTOR = len(("statements", 0, "kind", "where", "np"))  # the length of the place of a selector's value


class Experiment(BaseModel):
    """`small`: measurements for a machine with few cores; `full`: the size of the published study.
    A name is also the folder's.
    """

    model_config = ConfigDict(extra="forbid")

    title: str
    small: dict[str, Entry] = {}
    full: dict[str, Entry] = {}
    statements: list[Statement] = []

    def part(self, name: str) -> dict[str, Entry]:
        found: dict[str, Entry] = getattr(self, name)
        return found


@functools.cache
def form() -> type[Experiment]:
    """The model of the file, with every registered kind of measurement and claim."""
    name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    entry: Any = Annotated[union_of(ENTRIES.all()), Field(discriminator="measure")]
    statement: Any = Annotated[union_of(STATEMENTS.all()), Field(discriminator="kind")]
    return create_model(
        "ExperimentFile",
        __base__=Experiment,
        small=(dict[name, entry], {}),
        full=(dict[name, entry], {}),
        statements=(list[statement], []),
    )


def union_of(models: Mapping[str, type[BaseModel]]) -> Any:
    """The union of the models."""
    return functools.reduce(operator.or_, models.values())


def read(path: Path) -> Experiment:
    """The experiment in a file. Raises RequestError, naming the place, for a file that cannot be
    read or is invalid.
    """
    try:
        return form().model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise RequestError(f"{path}: {problem(error)}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is not valid TOML: {error}") from error


def problem(error: ValidationError) -> str:
    """The first error in one line with its place; an unknown key goes before other errors."""
    found = error.errors()
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    # The third part of a place inside a measurement or claim is the name of its kind, which the
    # file has elsewhere.
    loc = first["loc"]
    place = ".".join(str(part) for number, part in enumerate(loc) if number != 2)
    kinds: Mapping[str, type[BaseModel]] = STATEMENTS.all() if loc[0] == "statements" else ENTRIES.all()
    context = first.get("ctx", {})
    if first["type"] == "union_tag_invalid":
        tag = context["tag"]
        return f"{place}.{context['discriminator'].strip(chr(39))}: {tag}: {suggest_name('kind', tag, kinds)}"
    if first["type"] == "union_tag_not_found":
        return f"{place}: {context['discriminator'].strip(chr(39))} is missing. Known: {', '.join(kinds)}"
    if len(loc) > SELECTOR and loc[0] == "statements":
        return f"{'.'.join(map(str, (*loc[:2], *loc[3:SELECTOR])))}: give a value, a list of values, or {{ from = VALUE, to = VALUE }}"
    if first["type"] == "extra_forbidden":
        known = kinds.get(str(loc[2]), Experiment) if len(loc) > len(("small", "name", "kind")) else Experiment
        return f"{place}: {suggest_name('key', str(loc[-1]), known.model_fields)}"
    return f"{place}: {first['msg']}"
