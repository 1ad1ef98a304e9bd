"""What a user asks of a launch, and what its caller adds: the arguments of `launch`."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_serializer, model_validator
from pydantic.fields import FieldInfo

from hvscale.core.errors import RequestError
from hvscale.core.numbers import Ranks, Seconds
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.launch import flavours
from hvscale.launch.environment import recordable_requests
from hvscale.launch.placement_options import PlacementOptions, option

Instrument = Callable[[RunFolder, RunRecord, dict[str, str]], dict[str, str]]
Show = Callable[[int, str], None]
Warn = Callable[[str], None]
Watch = Callable[[RunFolder], object]


class LaunchOptions(BaseModel):
    """The options of a launch. The text of each field is its option's help on the command line.

    Each field has one name everywhere: `start_timeout` is `--start-timeout` on the command line and
    `start_timeout` in a JSON document. There the fields of `placement` stand beside the others, and
    what was not given is left out. A document holds `recorded()` options, without secrets.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    np: Annotated[Ranks, option("N", "Number of ranks.", "-np", "--np")] = 1
    mpi: Annotated[str, option("FLAVOUR", flavours.mpi_help)] = flavours.DEFAULT
    transport: Annotated[str | None, option("NAME", flavours.transport_help)] = None
    devices: Annotated[
        str,
        option(
            "own|all|split",
            "GPUs that a rank sees: its own, all, or split (the program sees its own, the MPI library all).",
        ),
    ] = "all"
    env: Annotated[
        tuple[str, ...],
        option(
            "NAME[=VALUE]",
            "Pass a variable to the ranks; repeatable. They get a few standard variables of this shell and no others.",
        ),
    ] = ()
    set: Annotated[
        tuple[str, ...],
        option(
            "KNOB=VALUE",
            "Set a knob in every library of the job that has it, such as cuda_ipc=off or fusion_threshold=32M; "
            "repeatable. `hvscale knobs` lists them.",
        ),
    ] = ()
    settings: Annotated[
        Path | None,
        option(
            "FILE",
            "Apply the settings.toml of a tuning study; options of this command line take precedence.",
        ),
    ] = None
    collectives: Annotated[
        Path | None,
        option(
            "TABLE",
            "Choose collective algorithms by the decision table of `hvscale tune-collectives`.",
        ),
    ] = None
    run: Annotated[Path | None, option("DIR", "Run folder to create. [default: a new one under runs/]")] = None
    placement: PlacementOptions = PlacementOptions()
    start_timeout: Annotated[
        Seconds | None,
        option(
            "SECONDS",
            "Fail if a rank has not finished MPI_Init or hvd.init() within this time. [default: never]",
        ),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _gather_placement(cls, values: Any) -> Any:
        """Accept the fields of `placement` beside the others, as documents and command lines have
        them.
        """
        if not isinstance(values, dict) or isinstance(values.get("placement"), PlacementOptions):
            return values
        of_placement = {name: value for name, value in values.items() if name in PlacementOptions.model_fields}
        own = {name: value for name, value in values.items() if name not in of_placement}
        return {**own, "placement": of_placement}

    @model_serializer
    def _flatten(self) -> dict[str, Any]:
        values = {**dict(self), **dict(self.placement)}
        given = {name for name in self.model_fields_set if name != "placement"} | self.placement.model_fields_set
        return {name: as_json(values[name]) for name in OPTIONS if name in given and values[name] not in (None, ())}

    @classmethod
    def of(cls, **values: object) -> Self:
        """The options that a command line or a file gives; None: not given.

        Raises RequestError, naming the option, for a value that is not possible.
        """
        try:
            return cls.model_validate({name: value for name, value in values.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][-1]).replace("_", "-")
            raise RequestError(f"--{name} {first['input']}: {first['msg']}") from error

    def command_line(self) -> list[list[str]]:
        """What a command line says for the options that were given: one list for each time that an
        option stands there.
        """
        return [
            [option_flag(name, one), *([] if isinstance(one, bool) else [str(one)])]
            for name, value in self.model_dump().items()
            for one in (value if isinstance(value, list) else [value])
        ]

    def replace(self, **changes: Any) -> Self:
        """A copy with other values in some fields."""
        unknown = changes.keys() - type(self).model_fields
        if unknown:
            raise TypeError(f"LaunchOptions has no field {', '.join(sorted(unknown))}")
        return self.model_copy(update=changes)

    def recorded(self) -> Self:
        """The options as a document may hold them: no values of secrets, and not the run folder,
        which changes from start to start.

        Raises RequestError for a variable of `env` that this shell does not have.
        """
        without_run = self.model_copy(update={"env": tuple(recordable_requests(self.env))})
        without_run.__dict__["run"] = None
        return without_run

    @property
    def knobs(self) -> dict[str, str]:
        """The values of `set`, by knob."""
        pairs = (request.partition("=") for request in self.set)
        return {knob.strip().replace("-", "_"): text.strip() for knob, _, text in pairs}


def option_fields() -> Iterator[tuple[str, FieldInfo]]:
    """Those of LaunchOptions, in the order of --help, with those of its placement in its place."""
    for name, field in LaunchOptions.model_fields.items():
        yield from PlacementOptions.model_fields.items() if name == "placement" else [(name, field)]


OPTIONS = dict(option_fields())


def option_flag(name: str, value: object) -> str:
    """The option of a field on the command line; that of a switch says which way it is turned."""
    extra: Any = OPTIONS[name].json_schema_extra
    on, _, off = str([*extra["flags"], "--" + name.replace("_", "-")][0]).partition("/")
    return off if value is False else on


def as_json(value: Any) -> Any:
    """A path as text, and a sequence as a list."""
    if isinstance(value, tuple):
        return [as_json(one) for one in value]
    return str(value) if isinstance(value, Path) else value


# Turns --settings and --set into variables and options of the job that `command` is. Whoever starts
# one command under several flavours calls it for each.
Resolve = Callable[[list[str], LaunchOptions], LaunchOptions]


def print_warning(text: str) -> None:
    print(f"hvscale: warning: {text}", file=sys.stderr)


@dataclass(frozen=True)
class LaunchHooks:
    """What the caller of a launch adds to it.

    `show(rank, line)` gets the ranks' output, `warn(text)` each warning. `watch(run)` is called
    about 20 times a second, and stops the job when it returns True.

    `instrument(run, record, environment)` returns variables for the command alone, on top of the
    job's `environment`, and may add to the record's warnings. `collectives` does the same for the
    table of `LaunchOptions.collectives`, and comes first: `instrument` finds its variables in
    `environment`.
    """

    show: Show | None = None
    warn: Warn = print_warning
    watch: Watch | None = None
    instrument: Instrument | None = None
    collectives: Instrument | None = None


NO_HOOKS = LaunchHooks()
