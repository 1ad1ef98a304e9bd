"""experiment.toml: what a study measures, at small and full size, and what it claims."""

import functools
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from hvscale.bench.experiments.entries import ENTRIES, Entry
from hvscale.bench.experiments.series import KEYS
from hvscale.bench.experiments.statements import STATEMENTS, Statement
from hvscale.core.documents import read_toml
from hvscale.core.suggest import suggest_name

PARTS = ("small", "full")
SELECTOR = len(("statements", 0, "kind", "where", "np"))  # length of the location of a selector's value


class Experiment(BaseModel):
    """The contents of the file.

    `small`: measurements for a machine with few cores, by name; `full`: those of the published
    study. The name is also the folder's.
    """

    model_config = ConfigDict(extra="forbid")

    title: str
    small: dict[str, Entry] = {}
    full: dict[str, Entry] = {}
    statements: list[Statement] = []

    def part(self, name: str) -> dict[str, Entry]:
        entries: dict[str, Entry] = getattr(self, name)
        return entries


@functools.cache
def file_model() -> type[Experiment]:
    """The model of the file, with all registered kinds of measurements and claims."""
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
    return functools.reduce(operator.or_, models.values())


def read(path: Path) -> Experiment:
    """The experiment in a file. Raises RequestError, naming the place in the file, if it cannot be
    read or is invalid.
    """
    return read_toml(file_model(), path, str(path), problem)


def problem(error: ValidationError) -> str:
    """The first error in one line with its place; unknown keys come first."""
    found = error.errors()
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    # Pydantic adds the kind of the measurement or claim as the third part of its location.
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
        place = ".".join(map(str, (*loc[:2], *loc[3:SELECTOR])))
        if loc[-1] == "[key]":
            return f"{place}: {suggest_name('key', str(loc[-2]), KEYS)}"
        return f"{place}: give a value, a list of values, or {{ from = VALUE, to = VALUE }}"
    if first["type"] == "extra_forbidden":
        known = kinds.get(str(loc[2]), Experiment) if len(loc) > len(("small", "name", "kind")) else Experiment
        return f"{place}: {suggest_name('key', str(loc[-1]), known.model_fields)}"
    return f"{place}: {first['msg']}"
