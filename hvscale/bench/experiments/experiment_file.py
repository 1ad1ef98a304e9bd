"""experiment.toml: what a study measures here and at its own size, and what it says."""

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

PARTS = ("here", "study")
SELECTOR = len(("statements", 0, "kind", "where", "np"))  # the place of what a selector asks of a key


class Experiment(BaseModel):
    """`here`: what a machine of few cores measures; `study`: the study's own size; each entry by its name, which is its folder's."""

    model_config = ConfigDict(extra="forbid")

    title: str
    here: dict[str, Entry] = {}
    study: dict[str, Entry] = {}
    statements: list[Statement] = []

    def part(self, name: str) -> dict[str, Entry]:
        found: dict[str, Entry] = getattr(self, name)
        return found


@functools.cache
def form() -> type[Experiment]:
    """With every kind of entry and statement that is registered."""
    name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    entry: Any = Annotated[one_of(ENTRIES.all()), Field(discriminator="measure")]
    statement: Any = Annotated[one_of(STATEMENTS.all()), Field(discriminator="kind")]
    return create_model(
        "ExperimentFile",
        __base__=Experiment,
        here=(dict[name, entry], {}),
        study=(dict[name, entry], {}),
        statements=(list[statement], []),
    )


def one_of(models: Mapping[str, type[BaseModel]]) -> Any:
    """Their union."""
    return functools.reduce(operator.or_, models.values())


def read(path: Path) -> Experiment:
    """Raises RequestError, naming the place, for a file that cannot be read, is no TOML, or asks for what does not exist."""
    try:
        return form().model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise RequestError(f"{path}: {problem(error)}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is damaged, it is no TOML: {error}") from error


def problem(error: ValidationError) -> str:
    """In one line with its place: a key that is not known, else the first that is wrong."""
    found = error.errors()
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    # The third part of a place inside an entry or a statement is the name of its kind, which the file has elsewhere.
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
        return f"{'.'.join(map(str, (*loc[:2], *loc[3:SELECTOR])))}: write a value, a list of values, or {{ from = VALUE, to = VALUE }}"
    if first["type"] == "extra_forbidden":
        known = kinds.get(str(loc[2]), Experiment) if len(loc) > len(("here", "name", "kind")) else Experiment
        return f"{place}: {suggest_name('key', str(loc[-1]), known.model_fields)}"
    return f"{place}: {first['msg']}"
