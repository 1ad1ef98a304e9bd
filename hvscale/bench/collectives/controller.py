"""Measures a collective on one or more back ends, with one launch per back end."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from hvscale.bench.collectives import backends, elements, sizes
from hvscale.bench.collectives.document import BackendRun, BenchDocument, WrongResult, crossovers, make_row
from hvscale.bench.collectives.memory import available_bytes, check_fits
from hvscale.bench.collectives.operations import COLLECTIVES, Collective
from hvscale.bench.collectives.rank_job import (
    COMMAND,
    ON_THIS_MACHINE,
    check_installed,
    measure_on_ranks,
)
from hvscale.bench.collectives.request import (
    ALL_ROOTS,
    BenchRequest,
    BenchStarted,
    Device,
    InPlace,
    MeasuredSize,
    MessagePath,
    Refused,
    RequestedSize,
    Schedule,
)
from hvscale.core.documents import to_json
from hvscale.core.errors import HvscaleError, RankFailedError, RequestError, UntrustedError
from hvscale.core.folder_lock import check_unlocked
from hvscale.core.run_folder import RunFolder, cannot_write, default_run_path, write_text
from hvscale.core.suggest import check_choice
from hvscale.launch.controller import RunInterruptedError
from hvscale.launch.options import NO_HOOKS, LaunchHooks, LaunchOptions, Resolve
from hvscale.studies.base import files_of, lock_folder, require_empty

MESSAGE_PATHS: tuple[MessagePath, ...] = ("host", "staged", "aware", "nccl")
DEVICES: tuple[Device, ...] = ("cpu", "cuda")
IN_PLACE_CHOICES: tuple[InPlace, ...] = ("both", "out", "in")


@dataclass(frozen=True)
class CollectiveOptions:
    """The options of the command line; None: not given."""

    backends: tuple[str, ...] = ()
    min_bytes: str | None = None
    max_bytes: str | None = None
    step_factor: float | None = None
    step_bytes: str | None = None
    sizes: str | None = None
    dtype: str = "float32"
    device: str = "cpu"
    paths: tuple[str, ...] = ()
    iterations: str = ""
    warmup: str = ""
    until_interval: float | None = None
    root: int = 0
    in_place: str = "both"
    check: bool = True


@dataclass(frozen=True)
class BackendLaunch:
    """The launch of one back end: its entry in the document, the request to its ranks, and the
    launch options.
    """

    entry: BackendRun
    request: BenchRequest
    options: LaunchOptions


def check_ranks(np: int, root: int) -> None:
    """Raise RequestError unless a collective with this root can run on so many ranks."""
    if np < 2:
        raise RequestError(f"-np {np}: a collective needs at least two ranks: use -np 2 or more")
    if not ALL_ROOTS <= root < np:
        raise RequestError(f"--root {root}: invalid rank; give 0 to {np - 1}, or {ALL_ROOTS} for each rank in turn")


def request_of(collective: Collective, dtype: elements.Dtype, np: int, options: CollectiveOptions) -> BenchRequest:
    """What is asked of each back end's ranks, before its name and path are set.

    Raises RequestError for an invalid option.
    """
    device = check_choice("--device", options.device, DEVICES)
    in_place = check_choice("--in-place", options.in_place, IN_PLACE_CHOICES)
    iterations = Schedule.parse("--iterations", options.iterations, minimum=1)
    warmup = Schedule.parse("--warmup", options.warmup, minimum=0)
    return BenchRequest(
        collective=collective.name,
        backend="",
        path="host",
        dtype=dtype.name,
        device=device,
        root=options.root,
        in_place=in_place,
        check=options.check,
        until_interval=options.until_interval,
        sizes=[
            RequestedSize(
                bytes=size.bytes,
                count=size.count,
                iterations=iterations.calls(size.bytes),
                warmup=warmup.calls(size.bytes),
            )
            for size in message_sizes(collective, dtype, np, options)
        ],
    )


def backend_launches(
    backend: backends.Backend, request: BenchRequest, paths: list[MessagePath], launch: LaunchOptions, resolve: Resolve
) -> Iterator[BackendLaunch]:
    """The launches of one back end, one for each of its paths.

    Raises RequestError if it cannot measure what is requested, or is not installed.
    """
    selected = backends.supported_paths(backend, request.collective, request.dtype, request.device, paths)
    backends.in_place_modes(backend, request.collective, request.in_place)
    if request.root == ALL_ROOTS and not backend.supports_rotating_root:
        supporting = backends.names_where(lambda other: other.supports_rotating_root)
        raise RequestError(
            f"{backend.name} does not support --root {ALL_ROOTS}, each rank as the root in turn; supported by {supporting}"
        )
    resolved = resolve(COMMAND, launch.replace(mpi=backend.flavour))
    check_installed(backend, resolved)
    if launch.placement.name in ON_THIS_MACHINE:
        largest = max(size.bytes for size in request.sizes)
        check_fits(largest, backend.buffers, launch.np, available_bytes(), "this machine's memory")
    for path in selected:
        name = backends.display_name(backend, path)
        entry = BackendRun(
            name=name, backend=backend.name, path=path, flavour=backend.flavour, run=name, knobs=resolved.knobs
        )
        yield BackendLaunch(entry, request.model_copy(update={"backend": backend.name, "path": path}), resolved)


class CollectiveBench:
    """One benchmark. `document` is written to bench.json after each back end."""

    def __init__(self, path: Path, document: BenchDocument, launches: list[BackendLaunch], hooks: LaunchHooks) -> None:
        self.path, self.document, self.launches, self.hooks = path, document, launches, hooks
        self.page = path / "bench.html"
        self.failure: HvscaleError | None = None

    @classmethod
    def of(
        cls,
        collective_name: str,
        options: CollectiveOptions,
        launch: LaunchOptions,
        resolve: Resolve,
        hooks: LaunchHooks = NO_HOOKS,
    ) -> Self:
        """`launch`: the options from the command line; `resolve` completes them for each back end.

        Raises RequestError for an invalid request. Writes nothing.
        """
        collective, dtype, np = COLLECTIVES.get(collective_name), elements.find_dtype(options.dtype), launch.np
        check_ranks(np, options.root)
        paths = [check_choice("--path", path, MESSAGE_PATHS) for path in options.paths]
        request = request_of(collective, dtype, np, options)
        folder = (launch.run or default_run_path(["bench", collective.name])).absolute()
        check_unlocked(folder)
        require_empty(folder)
        launches = [
            one
            for backend in backends.select(list(options.backends), launch.mpi)
            for one in backend_launches(backend, request, paths, launch, resolve)
        ]
        document = BenchDocument(
            folder=str(folder),
            collective=collective.name,
            np=np,
            dtype=dtype.name,
            device=request.device,
            root=options.root,
            reduction="sum" if collective.reduces else None,
            in_place=request.in_place,
            iterations=options.iterations,
            warmup=options.warmup,
            until_interval_percent=options.until_interval,
            launch=launch.recorded(),
            files=files_of([launch]),
            backends=[one.entry for one in launches],
        )
        requested, found = len(requested_sizes(collective, dtype, options)), len(request.sizes)
        unit = dtype.name + (f" for {np} ranks" if collective.blocks_in_buffer(np) > 1 else "")
        if requested > found:
            document.warnings.append(
                f"{requested} sizes round to {found} whole numbers of {unit}: each is measured once"
            )
        return cls(folder, document, launches, hooks)

    def expected_rows(self, launch: BackendLaunch) -> int:
        """The number of rows that a launch will give."""
        backend = backends.find_backend(launch.entry.backend)
        return len(launch.request.sizes) * len(
            backends.in_place_modes(backend, self.document.collective, launch.request.in_place)
        )

    def measure(
        self,
        *,
        starting: Callable[[BackendLaunch], None],
        measured: Callable[[MeasuredSize], None],
        warn: Callable[[str], None],
    ) -> None:
        """Measure each back end and keep all results.

        If a back end fails, the others are still measured, then its error is raised. Raises
        UntrustedError at the end if an element was wrong; RequestError and RunInterruptedError at
        once.
        """
        for text in self.document.warnings:
            warn(text)

        def warn_once(text: str) -> None:
            if text not in self.document.warnings:
                self.document.warnings.append(text)
                warn(text)

        with lock_folder(self.path):
            require_empty(self.path)
            self._measure_all(starting, measured, warn_once)
        if self.document.wrong:
            raise UntrustedError(wrong_result_message(self.document))
        if self.failure is not None:
            raise self.failure

    def _measure_all(
        self,
        starting: Callable[[BackendLaunch], None],
        measured: Callable[[MeasuredSize], None],
        warn: Callable[[str], None],
    ) -> None:
        """Measure each back end in the locked folder. The first error is kept in `failure`."""
        try:
            self.write()
            for launch in self.launches:
                starting(launch)
                self._measure_one(launch, measured, warn)
        except BaseException as error:
            self.document.state = "failed" if isinstance(error, RequestError) else "interrupted"
            raise
        else:
            self.document.state = "failed" if self.failure is not None else "finished"
        finally:
            if self.path.is_dir():
                self.write()

    def _measure_one(
        self, launch: BackendLaunch, measured: Callable[[MeasuredSize], None], warn: Callable[[str], None]
    ) -> None:
        entry = launch.entry
        run = RunFolder(self.path / entry.run)
        entry.state = "running"

        def handle(line: BenchStarted | Refused | MeasuredSize) -> None:
            self._add(entry, line)
            if isinstance(line, MeasuredSize):
                measured(line)

        try:
            measure_on_ranks(run, launch.request, launch.options, replace(self.hooks, warn=warn), handle)
            entry.state = "finished"
        except RunInterruptedError:
            entry.state = "interrupted"
            raise
        except RankFailedError as error:
            entry.state, entry.problem = "failed", str(error)
            self.failure = self.failure or RankFailedError(
                f"{entry.name}: {error}", error.last_lines, error.exit_status
            )
            warn(f"{entry.name} failed: {error}")
        except UntrustedError as error:
            # `launch` has already printed a warning.
            entry.state, entry.problem = "failed", str(error)
            self.document.rows = [row for row in self.document.rows if row.backend != entry.name]
            self.failure = self.failure or UntrustedError(f"{entry.name}: {error}")
        except RequestError as error:
            entry.state, entry.problem = "failed", str(error)
            raise RequestError(f"{entry.name}: {error}") from error
        finally:
            if run.run_json.exists():
                self.document.host = run.read().host
            self.write()

    def _add(self, entry: BackendRun, line: BenchStarted | Refused | MeasuredSize) -> None:
        collective = COLLECTIVES.get(self.document.collective)
        if isinstance(line, BenchStarted):
            entry.library = line.library
        elif isinstance(line, MeasuredSize):
            self.document.rows.append(make_row(entry.name, line, collective.bus_factor(self.document.np)))
            if line.first_wrong is not None:
                self.document.wrong.append(
                    WrongResult(
                        backend=entry.name,
                        bytes=line.bytes,
                        in_place=line.in_place,
                        wrong=line.wrong or 0,
                        **line.first_wrong.model_dump(),
                    )
                )

    def write(self) -> None:
        """Raises RequestError when the folder cannot be written or the disk is full."""
        self.document.crossovers = crossovers(self.document.rows)
        try:
            write_text(self.path / "bench.json", to_json(self.document) + "\n")
            if self.document.rows and self.document.state != "running":
                # Imported here: an invalid request must not wait for Plotly.
                from hvscale.bench.collectives.page import page

                write_text(self.page, page(self.document))
        except OSError as error:
            raise cannot_write(self.path, error) from error


def requested_sizes(collective: Collective, dtype: elements.Dtype, options: CollectiveOptions) -> list[int]:
    """The requested sizes in bytes. Raises RequestError."""
    if not collective.has_data:
        return [0]
    series_options = (options.min_bytes, options.max_bytes, options.step_factor, options.step_bytes)
    if options.sizes is None:
        return sizes.series(
            sizes.DEFAULT_MIN if options.min_bytes is None else options.min_bytes,
            sizes.DEFAULT_MAX if options.max_bytes is None else options.max_bytes,
            *series_options[2:],
        )
    if any(given is not None for given in series_options):
        raise RequestError("--sizes cannot be combined with --min-bytes, --max-bytes, --step-factor or --step-bytes")
    return sizes.named_sizes(options.sizes, dtype)


def message_sizes(
    collective: Collective, dtype: elements.Dtype, np: int, options: CollectiveOptions
) -> list[sizes.MessageSize]:
    return sizes.messages(collective, dtype, np, requested_sizes(collective, dtype, options))


def wrong_result_message(document: BenchDocument) -> str:
    """Describes the first wrong element."""
    first = document.wrong[0]
    place = "in place" if first.in_place else "out of place"
    more = len(document.wrong) - 1
    return (
        f"{first.backend}: wrong {document.collective} of {first.bytes} bytes, {place}: {first.describe(first.wrong)}"
        + (f"; other sizes with wrong results: {more}" if more else "")
    )
