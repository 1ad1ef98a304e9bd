"""Measures the exchange of parameters: every operation by every library in every place with every number of workers, in turns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hvscale.bench import backends, dtypes
from hvscale.bench.backends import Backend
from hvscale.bench.compare_placements import options_of_each
from hvscale.bench.controller import DEVICES, PATHS
from hvscale.bench.memory import available_bytes
from hvscale.bench.param_server.document import REPLACEMENT, ServerDocument, ServerRun, Variant
from hvscale.bench.param_server.held import OPERATIONS, SERVER, check_held
from hvscale.bench.request import Begun, Device, FirstWrong, Measured, Request, Size, Way
from hvscale.bench.sizes import LARGEST_COUNT, parse_size
from hvscale.bench.start import (
    COMMAND,
    ON_THIS_MACHINE,
    ResultLines,
    check_installed,
    measure_on_ranks,
    one_of,
    settings,
)
from hvscale.errors import HvscaleError, RequestError, UntrustedError
from hvscale.host import gpus
from hvscale.launch import RunInterruptedError
from hvscale.launch_options import resolve
from hvscale.placement_options import PlacementOptions
from hvscale.run_folder import RunFolder, cannot_write, default_run_path, write_text
from hvscale.scaling.document import State
from hvscale.scaling.study import named_failure
from hvscale.scaling.work import parse_ranks
from hvscale.study_folder import finished_or_new, study_in

# What makes two measurements the same; more back ends, placements, workers and repeats may be asked for in the same folder.
SAME = ("bytes", "dtype", "device", "iterations", "warmup", "check", "settings")
USUAL = {"cpu": ["mpi", "gloo"], "cuda": ["mpi", "nccl"]}


@dataclass(frozen=True)
class Options:
    """What the command line says, in its words."""

    backends: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    operations: str = ",".join(OPERATIONS)
    workers: str = "1,2"
    size: str = "1G"
    dtype: str = "float32"
    device: str = "cpu"
    repeats: int = 3
    iterations: int = 10
    warmup: int = 1
    check: bool = True


@dataclass(frozen=True)
class Start:
    """What the ranks of a variant are asked, and the keywords of their launch."""

    request: Request
    launch: dict[str, Any]


class ServerStudy:
    """One measurement: its folder, and `document`, which is in bench-param-server.json after every run."""

    def __init__(self, path: Path, document: ServerDocument, starts: Mapping[Variant, Start]) -> None:
        self.path, self.document, self.starts = path, document, starts
        self.json, self.page = path / "bench-param-server.json", path / "bench-param-server.html"
        self.failure: HvscaleError | None = None

    @classmethod
    def of(cls, options: Options, launch: dict[str, Any], path: Path | None) -> Self:
        """`launch`: the launch's options as they were given, but np. Raises RequestError for what cannot be measured; writes nothing."""
        workers = sorted(parse_ranks(options.workers, "--workers", "workers"))
        operations = [one_of("--operation", word.strip(), tuple(OPERATIONS)) for word in options.operations.split(",")]
        for option, value, least in (
            ("--repeat", options.repeats, 1),
            ("--iterations", options.iterations, 1),
            ("--warmup", options.warmup, 0),
        ):
            if value < least:
                raise RequestError(f"{option} {value}: at least {least} is needed")
        dtype, device = dtypes.get(options.dtype), one_of("--device", options.device, DEVICES)
        count = parse_size("--bytes", options.size) // dtype.bytes
        if not 1 <= count <= LARGEST_COUNT:
            raise RequestError(f"--bytes {options.size}: {count} {dtype.name}; MPI counts from 1 to {LARGEST_COUNT}")
        places = [name.strip() for name in launch["placement"].name.split(",")]
        if len(set(places)) != len(places):
            raise RequestError(
                f"--placement {launch['placement'].name}: name each once; for more starts of each use --repeat"
            )
        taken = libraries(options, launch["mpi"], operations, device)
        document = ServerDocument(
            folder=str((path or default_run_path(["bench", "param-server"])).absolute()),
            bytes=count * dtype.bytes,
            dtype=dtype.name,
            device=device,
            operations=list(dict.fromkeys(operations)),
            backends=list(taken),
            placements=places,
            workers=workers,
            repeats=options.repeats,
            iterations=options.iterations,
            warmup=options.warmup,
            check=options.check,
            settings=settings({**launch, "placement": launch["placement"].model_copy(update={"placement": None})}),
        )
        variants = document.variants()
        if not variants:
            raise RequestError("one worker has nobody to all-reduce with: --workers 2, or more")
        if 1 in workers and REPLACEMENT in operations:
            document.warnings.append("one worker has nobody to all-reduce with: that is measured with two or more")
        for backend, _ in taken.values():
            check_installed(backend, launch)
        placed: dict[int, dict[str, PlacementOptions]] = {}
        for np in {ranks(variant) for variant in variants}:
            placed[np], not_for_all = options_of_each(places, launch["placement"], np)
            document.warnings += [text for text in not_for_all if text not in document.warnings]
        starts = {}
        for variant in variants:
            backend, path_of_messages = taken[variant.backend]
            np = ranks(variant)
            place = whole_container(placed[np][variant.placement], np)
            check_node(variant, backend, path_of_messages, document)
            starts[variant] = Start(
                request_of(variant, backend, path_of_messages, document, count),
                resolve(COMMAND, {**launch, "np": np, "mpi": backend.flavour, "placement": place}),
            )
        return cls(Path(document.folder), document, starts)

    def measure(
        self,
        *,
        starting: Callable[[str, int], None],
        measured: Callable[[str, int, float | None, str | None], None],
        warn: Callable[[str], None],
    ) -> None:
        """Make the runs that the folder does not hold. `starting(what, repeat)` is told before one, `measured(what, repeat, seconds, unit)` after it.

        A variant that failed is not started again. The failure is raised after all others have been measured: RankFailedError, or UntrustedError
        for wrong values. Raises RequestError and RunInterruptedError at once. What was measured until then is kept in any case.
        """
        for text in self.document.warnings:
            warn(text)

        def warn_once(text: str) -> None:
            if text not in self.document.warnings:
                self.document.warnings.append(text)
                warn(text)

        with study_in(self.path, self.json, self.document, SAME, "hvscale bench param-server", "*-repeat-*"):
            self.write("running")
            try:
                failed: set[Variant] = set()
                for repeat in range(1, self.document.repeats + 1):
                    for variant in self.starts:
                        if variant not in failed:
                            starting(str(variant), repeat)
                            run = self.measure_run(variant, repeat, warn_once)
                            measured(str(variant), repeat, run.mean if run.problem is None else None, "s")
                            if run.problem is not None:
                                failed.add(variant)
                if self.failure is not None:
                    raise self.failure
            except BaseException as error:
                ended: State = "failed" if isinstance(error, HvscaleError) else "interrupted"
                self.write("interrupted" if isinstance(error, RunInterruptedError) else ended)
                raise
            self.write("finished")

    def measure_run(self, variant: Variant, repeat: int, warn: Callable[[str], None]) -> ServerRun:
        """Start the ranks, unless a finished run is there, and add what came of it to the document."""
        start = self.starts[variant]
        run, is_there = finished_or_new(self.path / f"{folder_name(variant)}-repeat-{repeat}")
        done: dict[str, Any] = {**dict(variant), "repeat": repeat, "folder": run.path.name}
        try:
            if not is_there:
                measure_on_ranks(run, start.request, start.launch, warn, lambda line: None)
            found = self.read(run, variant)
            done |= {"seconds": found.seconds, "wrong": found.wrong}
            if found.first_wrong is not None:
                raise UntrustedError(wrong_words(variant, found, found.first_wrong))
        except RunInterruptedError:
            self.document.runs.append(ServerRun(**done, problem="interrupted"))
            raise
        except RequestError as error:
            raise RequestError(f"{variant}: {error}") from error
        except HvscaleError as error:
            done["problem"] = str(error)
            self.failure = self.failure or named_failure(str(variant), error)
            warn(f"{variant} failed in repeat {repeat} and is not started again: {error}")
        self.document.runs.append(ServerRun(**done))
        self.write("running")
        return self.document.runs[-1]

    def read(self, run: RunFolder, variant: Variant) -> Measured:
        """What the ranks have written into the run. Raises UntrustedError where that is no measurement."""
        self.document.host = run.read().host
        lines = ResultLines(run.path).new()
        for line in lines:
            if isinstance(line, Begun):
                self.document.libraries[variant.backend] = line.library
        measured = [line for line in lines if isinstance(line, Measured)]
        if not measured:
            raise UntrustedError(f"{variant}: nothing was measured: see {run.log(0)}")
        return measured[0]

    def write(self, state: State) -> None:
        """Raises RequestError when the folder cannot be written or the disk is full."""
        self.document.state = state
        self.document.tabulate()
        try:
            write_text(self.json, self.document.model_dump_json(by_alias=True, indent=2) + "\n")
            if state != "running" and self.document.rows:
                # Imported here: a wrong request need not wait for Plotly.
                from hvscale.bench.param_server.page import page

                shown = page(self.document)
                write_text(self.page, shown)
        except OSError as error:
            raise cannot_write(self.path, error) from error


def libraries(options: Options, mpi: str, operations: list[str], device: Device) -> dict[str, tuple[Backend, Way]]:
    """The back ends asked for with each of their ways, by the names of the table. Raises RequestError for what they lack."""
    paths = [one_of("--path", path, PATHS) for path in options.paths]
    words = [name.strip() for word in options.backends for name in word.split(",")] or USUAL[device]
    found = {}
    # NCCL is started by an MPI, which carries what the server sends.
    for backend in backends.named([f"nccl-{mpi}" if word == "nccl" else word for word in words], mpi):
        if not backend.serves:
            raise RequestError(
                f"{backend.name} does not work with a parameter server; {backends.having(lambda other: other.serves)} do"
            )
        for operation in operations:
            every = paths or list(backend.paths.get(device, ()))
            for path in backends.check(backend, operation, options.dtype, device, every):
                found[backends.name_of(backend, path)] = backend, path
    return found


def check_node(variant: Variant, backend: Backend, path: Way, document: ServerDocument) -> None:
    """Raises RequestError for what this machine lacks, where it is the one whose GPUs and memory count."""
    if variant.placement not in ON_THIS_MACHINE:
        return
    if document.device == "cuda" and not gpus():
        raise RequestError("no NVIDIA GPU here: --device cpu")
    np = ranks(variant)
    here = "this machine's memory"
    check_held(variant.operation, path, backend, range(np), np, document.bytes, available_bytes(), here)


def request_of(variant: Variant, backend: Backend, path: Way, document: ServerDocument, count: int) -> Request:
    """`count`: elements of the parameters."""
    size = Size(bytes=document.bytes, count=count, iterations=document.iterations, warmup=document.warmup)
    return Request(
        collective=variant.operation,
        backend=backend.name,
        path=path,
        dtype=document.dtype,
        device=document.device,
        root=SERVER,
        places="both",
        check=document.check,
        until_interval=None,
        sizes=[size],
        first_worker=OPERATIONS[variant.operation],
    )


def ranks(variant: Variant) -> int:
    """The server is a rank of its own."""
    return variant.workers + OPERATIONS[variant.operation]


def whole_container(place: PlacementOptions, np: int) -> PlacementOptions:
    """As the study has its several workers in a container: all in one, unless it was asked for otherwise."""
    if place.placement != "docker:node" or place.ranks_per_container is not None:
        return place
    return place.model_copy(update={"ranks_per_container": np})


def folder_name(variant: Variant) -> str:
    return f"{variant.operation}-{variant.backend}-{variant.placement.replace(':', '-')}-workers-{variant.workers}"


def wrong_words(variant: Variant, measured: Measured, first: FirstWrong) -> str:
    return (
        f"{variant}: wrong values in {measured.bytes} bytes: rank {first.rank} has {first.got:g} in element {first.element}, "
        f"{first.expected:g} was expected ({measured.wrong} wrong elements)"
    )
