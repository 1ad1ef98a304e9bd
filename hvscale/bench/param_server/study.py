"""Measures the exchange of parameters: all operations, libraries, placements and numbers of
workers, interleaved.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hvscale.bench.collectives import backends, elements
from hvscale.bench.collectives.backends import Backend
from hvscale.bench.collectives.controller import DEVICES, MESSAGE_PATHS
from hvscale.bench.collectives.memory import OPERATIONS, SERVER, available_bytes, check_memory
from hvscale.bench.collectives.rank_job import (
    COMMAND,
    ON_THIS_MACHINE,
    ResultReader,
    check_installed,
    measure_on_ranks,
)
from hvscale.bench.collectives.request import (
    BenchRequest,
    BenchStarted,
    Device,
    MeasuredSize,
    MessagePath,
    RequestedSize,
)
from hvscale.bench.collectives.sizes import LARGEST_COUNT, parse_size
from hvscale.bench.param_server.document import REPLACEMENT, ExchangeVariant, ServerDocument, ServerRun
from hvscale.core.errors import RequestError, UntrustedError
from hvscale.core.host import gpus
from hvscale.core.numbers import parse_ranks
from hvscale.core.run_folder import RunFolder, default_run_path
from hvscale.core.suggest import check_choice
from hvscale.launch import placements
from hvscale.launch.options import LaunchHooks, LaunchOptions, Resolve
from hvscale.launch.placement_options import PlacementOptions
from hvscale.studies.comparison.placements import options_of_each
from hvscale.studies.interleaved import InterleavedStudy

USUAL = {"cpu": ["mpi", "gloo"], "cuda": ["mpi", "nccl"]}


@dataclass(frozen=True)
class ServerOptions:
    """The options of the command line."""

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
class ServerStart:
    """What the ranks of a variant are asked, and the options of their launch."""

    request: BenchRequest
    options: LaunchOptions


class ServerStudy(InterleavedStudy[ServerDocument, ExchangeVariant, ServerRun]):
    """One measurement of the exchange."""

    verb = "bench param-server"
    # A later call may add back ends, placements, workers and repeats.
    must_match = ("bytes", "dtype", "device", "iterations", "warmup", "check", "launch")
    variants: Mapping[ExchangeVariant, ServerStart]

    @classmethod
    def of(cls, options: ServerOptions, launch: LaunchOptions, path: Path | None, resolve: Resolve) -> Self:
        """`launch`: as they were given, but `np`; `resolve` makes those of each variant of them.

        Raises RequestError for what cannot be measured; writes nothing."""
        workers = sorted(parse_ranks(options.workers, "--workers", "workers"))
        operations = [
            check_choice("--operation", word.strip(), tuple(OPERATIONS)) for word in options.operations.split(",")
        ]
        for option, value, least in (
            ("--repeat", options.repeats, 1),
            ("--iterations", options.iterations, 1),
            ("--warmup", options.warmup, 0),
        ):
            if value < least:
                raise RequestError(f"{option} {value}: must be at least {least}")
        dtype, device = elements.find_dtype(options.dtype), check_choice("--device", options.device, DEVICES)
        count = parse_size("--bytes", options.size) // dtype.bytes
        if not 1 <= count <= LARGEST_COUNT:
            raise RequestError(f"--bytes {options.size}: {count} {dtype.name}; MPI counts from 1 to {LARGEST_COUNT}")
        places = [name.strip() for name in launch.placement.name.split(",")]
        if len(set(places)) != len(places):
            raise RequestError(f"--placement {launch.placement.name}: name each once; use --repeat for more starts")
        taken = libraries(options, launch.mpi, operations, device)
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
            launch=launch.replace(placement=launch.placement.model_copy(update={"placement": None})).recorded(),
        )
        variants = document.variants()
        if not variants:
            raise RequestError("all-reduce needs at least two workers: use --workers 2 or more")
        if 1 in workers and REPLACEMENT in operations:
            document.warnings.append("all-reduce needs at least two workers: it is not measured with one")
        for backend, _ in taken.values():
            check_installed(backend, launch)
        placed: dict[int, dict[str, PlacementOptions]] = {}
        for np in {ranks(variant) for variant in variants}:
            placed[np], not_for_all = options_of_each(places, launch.placement, np)
            document.warnings += [text for text in not_for_all if text not in document.warnings]
        starts = {}
        for variant in variants:
            backend, path_of_messages = taken[variant.backend]
            np = ranks(variant)
            place = whole_container(placed[np][variant.placement], np)
            check_node(variant, backend, path_of_messages, document)
            starts[variant] = ServerStart(
                request_of(variant, backend, path_of_messages, document, count),
                resolve(COMMAND, launch.replace(np=np, mpi=backend.flavour, placement=place)),
            )
        return cls(document, starts)

    def folder_name(self, variant: ExchangeVariant) -> str:
        place = variant.placement.replace(":", "-")
        return f"{variant.operation}-{variant.backend}-{place}-workers-{variant.workers}"

    def new_record(self, variant: ExchangeVariant, repeat: int, folder: str) -> ServerRun:
        return ServerRun(**dict(variant), repeat=repeat, folder=folder)

    def launch(self, variant: ExchangeVariant, run: RunFolder) -> None:
        start = self.variants[variant]
        try:
            measure_on_ranks(run, start.request, start.options, LaunchHooks(warn=self.warn), lambda line: None)
        except RequestError as error:
            raise RequestError(f"{variant}: {error}") from error

    def read(self, variant: ExchangeVariant, run: RunFolder, record: ServerRun) -> None:
        self.document.host = run.read().host
        lines = ResultReader(run.path).new_results()
        for line in lines:
            if isinstance(line, BenchStarted):
                self.document.libraries[variant.backend] = line.library
        found = next((line for line in lines if isinstance(line, MeasuredSize)), None)
        if found is None:
            raise UntrustedError(f"{variant}: nothing was measured: see {run.log(0)}")
        record.seconds, record.wrong = found.seconds, found.wrong
        if found.first_wrong is not None:
            wrong = found.first_wrong.describe(found.wrong or 0)
            raise UntrustedError(f"{variant}: wrong values in {found.bytes} bytes: {wrong}")

    def result(self, record: ServerRun) -> tuple[float | None, str | None]:
        return record.mean if record.problem is None else None, "s"

    def has_figures(self) -> bool:
        return bool(self.document.rows)

    def html(self) -> str:
        from hvscale.bench.param_server.page import page

        return page(self.document)


def libraries(
    options: ServerOptions, mpi: str, operations: list[str], device: Device
) -> dict[str, tuple[Backend, MessagePath]]:
    """The requested back ends with each of their paths, by their names in tables. Raises
    RequestError for what is not supported.
    """
    paths = [check_choice("--path", path, MESSAGE_PATHS) for path in options.paths]
    words = [name.strip() for word in options.backends for name in word.split(",")] or USUAL[device]
    found = {}
    # NCCL is started by an MPI, which carries what the server sends.
    for backend in backends.select([f"nccl-{mpi}" if word == "nccl" else word for word in words], mpi):
        if not backend.supports_param_server:
            raise RequestError(
                f"{backend.name} does not work with a parameter server; {backends.names_where(lambda other: other.supports_param_server)} do"
            )
        for operation in operations:
            every = paths or list(backend.paths.get(device, ()))
            for path in backends.supported_paths(backend, operation, options.dtype, device, every):
                found[backends.display_name(backend, path)] = backend, path
    return found


def check_node(variant: ExchangeVariant, backend: Backend, path: MessagePath, document: ServerDocument) -> None:
    """Raises RequestError where the ranks run on this machine and it lacks the GPU or the
    memory.
    """
    if variant.placement not in ON_THIS_MACHINE:
        return
    if document.device == "cuda" and not gpus():
        raise RequestError("no NVIDIA GPU here: use --device cpu")
    np = ranks(variant)
    here = "this machine's memory"
    check_memory(variant.operation, path, backend, range(np), np, document.bytes, available_bytes(), here)


def request_of(
    variant: ExchangeVariant, backend: Backend, path: MessagePath, document: ServerDocument, count: int
) -> BenchRequest:
    """The request to the ranks of a variant. `count`: elements of the parameters."""
    size = RequestedSize(bytes=document.bytes, count=count, iterations=document.iterations, warmup=document.warmup)
    return BenchRequest(
        collective=variant.operation,
        backend=backend.name,
        path=path,
        dtype=document.dtype,
        device=document.device,
        root=SERVER,
        in_place="both",
        check=document.check,
        until_interval=None,
        sizes=[size],
        first_worker=OPERATIONS[variant.operation],
    )


def ranks(variant: ExchangeVariant) -> int:
    """The number of ranks; the server is one of them."""
    return variant.workers + OPERATIONS[variant.operation]


def whole_container(place: PlacementOptions, np: int) -> PlacementOptions:
    """The placement with all ranks in one container, as in the published study, unless
    --ranks-per-container is given.
    """
    if "ranks_per_container" not in placements.find(place.name).takes or place.ranks_per_container is not None:
        return place
    return place.model_copy(update={"ranks_per_container": np})
