"""Measures a collective: one start of ranks for each back end, all in one folder."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from hvscale.bench.collectives import backends, elements, sizes
from hvscale.bench.collectives.document import BackendRun, BenchDocument, Wrong, crossovers, row_of
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
    Measured,
    MessagePath,
    Refused,
    Schedule,
    Size,
)
from hvscale.core.documents import to_json
from hvscale.core.errors import HvscaleError, RankFailedError, RequestError, UntrustedError
from hvscale.core.run_folder import RunFolder, cannot_write, default_run_path, write_text
from hvscale.core.suggest import check_choice
from hvscale.launch.controller import RunInterruptedError
from hvscale.launch.options import NO_HOOKS, LaunchHooks, LaunchOptions, Resolve
from hvscale.studies.folder import lock_folder, refuse_unless_empty

PATHS: tuple[MessagePath, ...] = ("host", "staged", "aware", "nccl")
DEVICES: tuple[Device, ...] = ("cpu", "cuda")
PLACES: tuple[InPlace, ...] = ("both", "out", "in")


@dataclass(frozen=True)
class CollectiveOptions:
    """The options of the command line. None: not given."""

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
class BackendStart:
    """One back end's: its place in the document, what its ranks are asked, and the options of its
    launch.
    """

    entry: BackendRun
    request: BenchRequest
    options: LaunchOptions


class CollectiveBench:
    """One benchmark. `document` is written to bench.json after every back end."""

    def __init__(self, path: Path, document: BenchDocument, starts: list[BackendStart], hooks: LaunchHooks) -> None:
        self.path, self.document, self.starts, self.hooks = path, document, starts, hooks
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
        """`launch`: as they were given; `resolve` makes those of each back end of them.

        Raises RequestError for what cannot be measured; writes nothing.
        """
        collective, dtype, np = COLLECTIVES.get(collective_name), elements.find_dtype(options.dtype), launch.np
        if np < 2:
            raise RequestError(f"-np {np}: a collective needs at least two ranks: use -np 2 or more")
        if not ALL_ROOTS <= options.root < np:
            raise RequestError(
                f"--root {options.root}: invalid rank; give 0 to {np - 1}, or {ALL_ROOTS} for each rank in turn"
            )
        if options.until_interval is not None and not options.until_interval > 0:
            raise RequestError(f"--until-interval {options.until_interval:g}: must be above 0 percent")
        device = check_choice("--device", options.device, DEVICES)
        in_place = check_choice("--in-place", options.in_place, PLACES)
        paths = [check_choice("--path", path, PATHS) for path in options.paths]
        iterations = Schedule.parse("--iterations", options.iterations, least=1)
        warmup = Schedule.parse("--warmup", options.warmup, least=0)
        found = sizes_of(collective, dtype, np, options)
        folder = (launch.run or default_run_path(["bench", collective.name])).absolute()
        refuse_unless_empty(folder)
        document = BenchDocument(
            folder=str(folder),
            collective=collective.name,
            np=np,
            dtype=dtype.name,
            device=device,
            root=options.root,
            reduction="sum" if collective.reduces else None,
            in_place=in_place,
            iterations=options.iterations,
            warmup=options.warmup,
            until_interval_percent=options.until_interval,
            launch=launch.recorded(),
        )
        starts = []
        for backend in backends.named(list(options.backends), launch.mpi):
            taken = backends.check(backend, collective.name, dtype.name, device, paths)
            backends.places(backend, collective.name, in_place)
            if options.root == ALL_ROOTS and not backend.rotates_root:
                having = backends.names_with(lambda other: other.rotates_root)
                raise RequestError(
                    f"{backend.name} does not support --root {ALL_ROOTS}, each rank as the root in turn; supported by {having}"
                )
            resolved = resolve(COMMAND, launch.replace(mpi=backend.flavour))
            check_installed(backend, resolved)
            if launch.placement.name in ON_THIS_MACHINE:
                largest = max(size.bytes for size in found)
                check_fits(largest, backend.buffers, np, available_bytes(), "this machine's memory")
            for path in taken:
                name = backends.name_of(backend, path)
                entry = BackendRun(
                    name=name,
                    backend=backend.name,
                    path=path,
                    flavour=backend.flavour,
                    run=name,
                    knobs=resolved.knobs,
                )
                request = BenchRequest(
                    collective=collective.name,
                    backend=backend.name,
                    path=path,
                    dtype=dtype.name,
                    device=device,
                    root=options.root,
                    places=in_place,
                    check=options.check,
                    until_interval=options.until_interval,
                    sizes=[
                        Size(
                            bytes=size.bytes,
                            count=size.count,
                            iterations=iterations.calls(size.bytes),
                            warmup=warmup.calls(size.bytes),
                        )
                        for size in found
                    ],
                )
                starts.append(BackendStart(entry, request, resolved))
        document.backends = [start.entry for start in starts]
        asked = len(asked_sizes(collective, dtype, options))
        if asked > len(found):
            document.warnings.append(
                f"{asked} sizes give {len(found)} in whole {dtype.name}{f' for {np} ranks' if collective.largest(np) > 1 else ''}: "
                "each is measured once"
            )
        return cls(folder, document, starts, hooks)

    def measurements(self, start: BackendStart) -> int:
        """The number of rows that a start gives."""
        backend = backends.find_backend(start.entry.backend)
        return len(start.request.sizes) * len(backends.places(backend, self.document.collective, start.request.places))

    def measure(
        self,
        *,
        starting: Callable[[BackendStart], None],
        measured: Callable[[Measured], None],
        warn: Callable[[str], None],
    ) -> None:
        """Start each back end. One that fails does not keep the others from being measured; its
        failure is raised after them.

        Raises UntrustedError at the end where an element was wrong, and RequestError and
        RunInterruptedError at once. What was measured until then is kept in any case.
        """
        for text in self.document.warnings:
            warn(text)

        def warn_once(text: str) -> None:
            if text not in self.document.warnings:
                self.document.warnings.append(text)
                warn(text)

        with lock_folder(self.path):
            refuse_unless_empty(self.path)
            self.measure_all(starting, measured, warn_once)
        if self.document.wrong:
            raise UntrustedError(wrong_words(self.document))
        if self.failure is not None:
            raise self.failure

    def measure_all(
        self,
        starting: Callable[[BackendStart], None],
        measured: Callable[[Measured], None],
        warn: Callable[[str], None],
    ) -> None:
        """As `measure`, in a locked folder. A failure is kept in `failure`."""
        try:
            self.write()
            for start in self.starts:
                starting(start)
                self.measure_one(start, measured, warn)
        except BaseException as error:
            self.document.state = "failed" if isinstance(error, RequestError) else "interrupted"
            raise
        else:
            self.document.state = "failed" if self.failure is not None else "finished"
        finally:
            if self.path.is_dir():
                self.write()

    def measure_one(
        self, start: BackendStart, measured: Callable[[Measured], None], warn: Callable[[str], None]
    ) -> None:
        entry = start.entry
        run = RunFolder(self.path / entry.run)
        entry.state = "running"

        def take(line: BenchStarted | Refused | Measured) -> None:
            self.take(entry, line)
            if isinstance(line, Measured):
                measured(line)

        try:
            measure_on_ranks(run, start.request, start.options, replace(self.hooks, warn=warn), take)
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
            # The launch has already warned about it.
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

    def take(self, entry: BackendRun, line: BenchStarted | Refused | Measured) -> None:
        collective = COLLECTIVES.get(self.document.collective)
        if isinstance(line, BenchStarted):
            entry.library = line.library
        elif isinstance(line, Measured):
            self.document.rows.append(row_of(entry.name, line, collective.bus_factor(self.document.np)))
            if line.first_wrong is not None:
                self.document.wrong.append(
                    Wrong(
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
                # Imported here: a wrong request need not wait for Plotly.
                from hvscale.bench.collectives.page import page

                shown = page(self.document)
                write_text(self.page, shown)
        except OSError as error:
            raise cannot_write(self.path, error) from error


def asked_sizes(collective: Collective, dtype: elements.Dtype, options: CollectiveOptions) -> list[int]:
    """The requested sizes in bytes. Raises RequestError."""
    if not collective.has_data:
        return [0]
    by_series = (options.min_bytes, options.max_bytes, options.step_factor, options.step_bytes)
    if options.sizes is None:
        return sizes.series(
            sizes.DEFAULT_MIN if options.min_bytes is None else options.min_bytes,
            sizes.DEFAULT_MAX if options.max_bytes is None else options.max_bytes,
            *by_series[2:],
        )
    if any(given is not None for given in by_series):
        raise RequestError("--sizes cannot be combined with --min-bytes, --max-bytes, --step-factor or --step-bytes")
    return sizes.named_sizes(options.sizes, dtype)


def sizes_of(
    collective: Collective, dtype: elements.Dtype, np: int, options: CollectiveOptions
) -> list[sizes.MessageSize]:
    return sizes.messages(collective, dtype, np, asked_sizes(collective, dtype, options))


def wrong_words(document: BenchDocument) -> str:
    """The first wrong element in words."""
    first = document.wrong[0]
    place = "in place" if first.in_place else "out of place"
    more = len(document.wrong) - 1
    return (
        f"{first.backend}: wrong {document.collective} of {first.bytes} bytes, {place}: rank {first.rank} has {first.got:g} in element "
        f"{first.element}, {first.expected:g} was expected ({first.wrong} wrong elements)"
        + (f", and {more} sizes more" if more else "")
    )
