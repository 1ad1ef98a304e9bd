"""Measures parameter exchanges: operations, libraries, placements and numbers of workers are
interleaved.
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
from hvscale.bench.param_server.document import ALLREDUCE, ExchangeVariant, ParamServerDocument, ParamServerRun
from hvscale.core.errors import RequestError, UntrustedError
from hvscale.core.host import gpus
from hvscale.core.numbers import parse_ranks
from hvscale.core.run_folder import RunFolder, default_run_path
from hvscale.core.suggest import check_choice
from hvscale.launch import placements
from hvscale.launch.options import LaunchHooks, LaunchOptions, Resolve
from hvscale.launch.placement_options import PlacementOptions
from hvscale.studies.comparison.placements import options_of_each, placement_names
from hvscale.studies.interleaved import InterleavedStudy

DEFAULT_BACKENDS = {"cpu": ["mpi", "gloo"], "cuda": ["mpi", "nccl"]}


@dataclass(frozen=True)
class ParamServerOptions:
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
class VariantLaunch:
    """The request to the ranks of a variant and the options of their launch."""

    request: BenchRequest
    options: LaunchOptions


class ParamServerStudy(InterleavedStudy[ParamServerDocument, ExchangeVariant, ParamServerRun]):
    """One measurement of parameter exchanges."""

    verb = "bench param-server"
    # A resumed study may add back ends, placements, workers and repeats.
    must_match = ("bytes", "dtype", "device", "iterations", "warmup", "check", "launch")
    variants: Mapping[ExchangeVariant, VariantLaunch]

    @classmethod
    def of(cls, options: ParamServerOptions, launch: LaunchOptions, path: Path | None, resolve: Resolve) -> Self:
        """`launch`: the options from the command line; `resolve` completes them for each variant.

        Raises RequestError for an invalid request. Writes nothing.
        """
        workers = sorted(parse_ranks(options.workers, "--workers", "workers"))
        operations = [
            check_choice("--operation", word.strip(), tuple(OPERATIONS)) for word in options.operations.split(",")
        ]
        dtype, device = elements.find_dtype(options.dtype), check_choice("--device", options.device, DEVICES)
        count = parse_size("--bytes", options.size) // dtype.bytes
        if not 1 <= count <= LARGEST_COUNT:
            raise RequestError(
                f"--bytes {options.size}: {count} elements of {dtype.name}; give 1 to {LARGEST_COUNT} elements, as MPI can count"
            )
        names = placement_names(launch.placement)
        selected = select_libraries(options, launch.mpi, operations, device)
        document = ParamServerDocument(
            folder=str((path or default_run_path(["bench", "param-server"])).absolute()),
            bytes=count * dtype.bytes,
            dtype=dtype.name,
            device=device,
            operations=list(dict.fromkeys(operations)),
            backends=list(selected),
            placements=names,
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
        if 1 in workers and ALLREDUCE in operations:
            document.warnings.append("all-reduce needs at least two workers: it is not measured with one")
        for backend, _ in selected.values():
            check_installed(backend, launch)
        placed: dict[int, dict[str, PlacementOptions]] = {}
        for np in {ranks(variant) for variant in variants}:
            placed[np], not_for_all = options_of_each(names, launch.placement, np)
            document.warnings += [text for text in not_for_all if text not in document.warnings]
        starts = {}
        for variant in variants:
            backend, message_path = selected[variant.backend]
            np = ranks(variant)
            placement = one_container(placed[np][variant.placement], np)
            check_machine(variant, backend, message_path, document)
            starts[variant] = VariantLaunch(
                request_of(variant, backend, message_path, document, count),
                resolve(COMMAND, launch.replace(np=np, mpi=backend.flavour, placement=placement)),
            )
        return cls(document, starts)

    def folder_name(self, variant: ExchangeVariant) -> str:
        place = variant.placement.replace(":", "-")
        return f"{variant.operation}-{variant.backend}-{place}-workers-{variant.workers}"

    def new_record(self, variant: ExchangeVariant, repeat: int, folder: str) -> ParamServerRun:
        return ParamServerRun(**dict(variant), repeat=repeat, folder=folder)

    def launch(self, variant: ExchangeVariant, run: RunFolder) -> None:
        start = self.variants[variant]
        try:
            measure_on_ranks(run, start.request, start.options, LaunchHooks(warn=self.warn), lambda line: None)
        except RequestError as error:
            raise RequestError(f"{variant}: {error}") from error

    def read(self, variant: ExchangeVariant, run: RunFolder, record: ParamServerRun) -> None:
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

    def result(self, record: ParamServerRun) -> tuple[float | None, str | None]:
        return record.mean, "s"

    def has_figures(self) -> bool:
        return bool(self.document.rows)

    def html(self) -> str:
        from hvscale.bench.param_server.output import page

        return page(self.document)


def select_libraries(
    options: ParamServerOptions, mpi: str, operations: list[str], device: Device
) -> dict[str, tuple[Backend, MessagePath]]:
    """The requested back ends with each of their paths, by their names in tables.

    Raises RequestError for an unsupported request.
    """
    paths = [check_choice("--path", path, MESSAGE_PATHS) for path in options.paths]
    words = [name.strip() for word in options.backends for name in word.split(",")] or DEFAULT_BACKENDS[device]
    found = {}
    # `nccl` needs an MPI, which starts the ranks and sends the server's messages.
    for backend in backends.select([f"nccl-{mpi}" if word == "nccl" else word for word in words], mpi):
        if not backend.supports_param_server:
            raise RequestError(
                f"{backend.name} does not support a parameter server; supported by {backends.names_where(lambda other: other.supports_param_server)}"
            )
        for operation in operations:
            wanted = paths or list(backend.paths.get(device, ()))
            for path in backends.supported_paths(backend, operation, options.dtype, device, wanted):
                found[backends.display_name(backend, path)] = backend, path
    return found


def check_machine(variant: ExchangeVariant, backend: Backend, path: MessagePath, document: ParamServerDocument) -> None:
    """Raises RequestError if the ranks run on this machine and it has no GPU or too little
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
    variant: ExchangeVariant, backend: Backend, path: MessagePath, document: ParamServerDocument, count: int
) -> BenchRequest:
    """The request to the ranks of a variant. `count`: the number of parameters."""
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
    """The number of ranks, including the server."""
    return variant.workers + OPERATIONS[variant.operation]


def one_container(place: PlacementOptions, np: int) -> PlacementOptions:
    """The placement with all ranks in one container, as in the published study, unless
    --ranks-per-container is given.
    """
    if "ranks_per_container" not in placements.find(place.name).takes or place.ranks_per_container is not None:
        return place
    return place.model_copy(update={"ranks_per_container": np})
