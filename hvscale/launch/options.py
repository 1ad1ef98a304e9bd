"""The options of a launch, and the hooks that its caller adds: the arguments of `launch`."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_serializer, model_validator
from pydantic.fields import FieldInfo

from hvscale.core.errors import RequestError
from hvscale.core.numbers import Ranks, Seconds
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.launch import flavours
from hvscale.launch.environment import recordable_requests
from hvscale.launch.job import Nodes
from hvscale.launch.placement_options import PlacementOptions, option

Instrument = Callable[[RunFolder, RunRecord, dict[str, str]], dict[str, str]]
Show = Callable[[int, str], None]
Warn = Callable[[str], None]
Watch = Callable[[RunFolder], object]


Record = Literal["calls", "counters"]


class LaunchOptions(BaseModel):
    """The options of a launch. Each field's text is its option's help on the command line.

    A field has one name everywhere: `start_timeout` is `--start-timeout` on the command line and
    `start_timeout` in a JSON document. Documents hold the fields of `placement` beside the others,
    and only those that were given. They hold `recorded()` options, without secrets.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    np: Annotated[Ranks, option("N", "Start this many ranks.", "-np", "--np")] = 1
    mpi: Annotated[str, option("FLAVOUR", flavours.mpi_help)] = flavours.of_this_environment()
    transport: Annotated[str | None, option("NAME", flavours.transport_help)] = None
    devices: Annotated[
        str,
        option(
            "own|all|split",
            "Show each rank its own GPU, all GPUs, or split: its own to the program, all to the MPI library.",
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
    record: Annotated[
        Record | None,
        option(
            "calls|counters",
            "Keep calls (every call: up to 64 MiB a rank, 16 MiB with 512 ranks) or counters (totals and latency "
            "histograms: 0.2 MiB a rank). Counters give no waiting, timelines or buffer reuse. [default: calls]",
        ),
    ] = None
    record_dir: Annotated[
        Path | None,
        option(
            "DIR",
            "Record in this folder of each node's own disk, such as /local/scratch, and collect the records when the "
            "job ends. [default: the run folder]",
        ),
    ] = None
    run: Annotated[Path | None, option("DIR", "Create this run folder. [default: a new one under runs/]")] = None
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
        """Accept the fields of `placement` beside the others, as in documents and options."""
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
        """The options given on a command line or in a file; None means not given.

        Raises RequestError that names the option of an invalid value.
        """
        try:
            return cls.model_validate({name: value for name, value in values.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][-1]).replace("_", "-")
            raise RequestError(f"--{name} {first['input']}: {first['msg']}") from error

    def command_line(self) -> list[list[str]]:
        """The words of the given options on a command line: one list for each occurrence."""
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
        """The options as a document may hold them: without secret values and the run folder.

        The run folder differs from start to start. Raises RequestError if a variable of `env` is
        not set in this shell.
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
    """The fields of LaunchOptions in the order of --help, with those of its placement expanded."""
    for name, field in LaunchOptions.model_fields.items():
        yield from PlacementOptions.model_fields.items() if name == "placement" else [(name, field)]


OPTIONS = dict(option_fields())


def option_flag(name: str, value: object) -> str:
    """A field's option on the command line; a switch has one flag for on and one for off."""
    extra: Any = OPTIONS[name].json_schema_extra
    on, _, off = str([*extra["flags"], "--" + name.replace("_", "-")][0]).partition("/")
    return off if value is False else on


def as_json(value: Any) -> Any:
    """A path as text, and a sequence as a list."""
    if isinstance(value, tuple):
        return [as_json(one) for one in value]
    return str(value) if isinstance(value, Path) else value


# Turns --settings and --set into variables and options of the job that runs `command`. A caller
# that starts one command under several flavours calls it for each.
Resolve = Callable[[list[str], LaunchOptions], LaunchOptions]


def print_warning(text: str) -> None:
    print(f"hvscale: warning: {text}", file=sys.stderr)


class NodeFiles(Protocol):
    """Files that the ranks write on their nodes' own disks."""

    def prepare(self, run: RunFolder, record: RunRecord, nodes: Nodes) -> dict[str, str]:
        """Called before the job starts; returns further variables for the command.

        Raises RequestError if a node has no place for the files.
        """

    def collect(self, run: RunFolder, record: RunRecord, nodes: Nodes) -> list[str]:
        """Called after the job's last process, also if `prepare` failed; returns warnings."""


@dataclass(frozen=True)
class LaunchHooks:
    """What the caller adds to a launch.

    `show(rank, line)` gets the ranks' output, and `warn(text)` each warning. `watch(run)` is called
    about 20 times a second; the job stops when it returns True.

    `collectives(run, record, environment)` and then `instrument(run, record, environment)` return
    variables for the command only, on top of the job's `environment`. `collectives` is called if
    `LaunchOptions.collectives` is set; `instrument` gets its variables in `environment`. Both may
    add to the record's warnings, as may `node_files`, which is called while the job's nodes exist.
    """

    show: Show | None = None
    warn: Warn = print_warning
    watch: Watch | None = None
    instrument: Instrument | None = None
    collectives: Instrument | None = None
    node_files: NodeFiles | None = None


NO_HOOKS = LaunchHooks()
