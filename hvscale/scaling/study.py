"""Measures the scaling of a command: fresh starts on each number of ranks, in turns, in a folder that can be gone on with."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from hvscale.errors import HvscaleError, RankFailedError, RequestError
from hvscale.launch import RunInterruptedError, launch
from hvscale.launch.environment import named, recordable
from hvscale.run_folder import cannot_write, default_run_path, write_text
from hvscale.scaling.document import ScalingDocument, ScalingRun, State, tabulate
from hvscale.scaling.throughput import Metric, read_throughput
from hvscale.scaling.work import Scaling, Work, parse_ranks
from hvscale.study_folder import finished_or_new, study_in

# What makes two measurements the same; more np or repeats may be asked for in the same folder.
SAME = ("command", "scaling", "settings")


class Study:
    """One measurement of scaling: its folder, and `document`, which is in scale.json after every run."""

    def __init__(
        self, path: Path, work: Work, document: ScalingDocument, metric: Metric | None, options: Mapping[str, Any]
    ) -> None:
        self.path, self.work, self.document, self.metric, self.options = path, work, document, metric, options
        self.scale_json, self.page = path / "scale.json", path / "scale.html"
        self.failure: HvscaleError | None = None

    @classmethod
    def of(
        cls,
        command: list[str],
        *,
        ranks: str,
        repeats: int,
        scaling: Scaling,
        metric: str | None,
        path: Path | None,
        **options: Any,
    ) -> Self:
        """`options`: keywords of `hvscale.launch.launch`. Raises RequestError for what cannot be measured; writes nothing."""
        nps = parse_ranks(ranks)
        if repeats < 1:
            raise RequestError(f"--repeat {repeats}: at least one measurement of each np is needed")
        found = Metric.parse(metric) if metric is not None else None
        work = Work(command, scaling)
        warning = work.check(nps)
        folder = (path or default_run_path(["scale", *command])).absolute()
        document = ScalingDocument(
            folder=str(folder),
            command=command,
            scaling=scaling,
            settings=settings(**options),
            metric=metric,
            np=nps,
            repeats=repeats,
            base_np=min(nps),
            warnings=[warning] if warning else [],
        )
        if min(nps) != 1:
            document.warnings.append(f"np 1 is not measured: speed-up and efficiency are over np {min(nps)}")
        return cls(folder, work, document, found, options)

    def measure(
        self,
        *,
        starting: Callable[[str, int], None],
        measured: Callable[[str, int, float | None, str | None], None],
        warn: Callable[[str], None],
    ) -> None:
        """Make the runs that the folder does not hold yet. `starting(what, repeat)` is told before one, `measured(what, repeat, value, unit)` after.

        An np on which a run failed is not started again. The failure is raised after all others have been measured: RankFailedError,
        or UntrustedError. Raises RequestError and RunInterruptedError at once. What was measured until then is kept in any case.
        """
        for text in self.document.warnings:
            warn(text)

        def warn_once(text: str) -> None:
            if text not in self.document.warnings:
                self.document.warnings.append(text)
                warn(text)

        with study_in(self.path, self.scale_json, self.document, SAME, "hvscale scale", "np-*"):
            self.write("running")
            try:
                failed: set[int] = set()
                for repeat in range(1, self.document.repeats + 1):
                    for np in self.document.np:
                        if np not in failed:
                            starting(f"np {np}", repeat)
                            run = self.measure_run(np, repeat, warn_once)
                            measured(f"np {np}", repeat, run.throughput, self.document.unit)
                            if run.problem is not None:
                                failed.add(np)
                self.warn_of_threads(warn_once)
                if self.failure is not None:
                    raise self.failure
            except BaseException as error:
                ended: State = "failed" if isinstance(error, HvscaleError) else "interrupted"
                self.write("interrupted" if isinstance(error, RunInterruptedError) else ended)
                raise
            self.write("finished")

    def measure_run(self, np: int, repeat: int, warn: Callable[[str], None]) -> ScalingRun:
        """Start the command, unless a finished run is there, and add what came of it to the document."""
        done = ScalingRun(np=np, repeat=repeat, folder="")
        run, is_there = finished_or_new(self.path / f"np-{np}-repeat-{repeat}")
        done.folder = run.path.name
        try:
            if not is_there:
                launch(np, self.work.command_for(np), run_path=run.path, warn=warn, **self.options)
            found = read_throughput(run, np, self.metric, warn)
        except RequestError:
            raise
        except RunInterruptedError:
            done.problem = "interrupted"
            self.document.runs.append(done)
            raise
        except HvscaleError as error:
            done.problem = str(error)
            self.failure = self.failure or named_failure(f"np {np}", error)
            warn(f"np {np}, repeat {repeat} failed and is not started again: {done.problem}")
        else:
            done.throughput, done.source, done.threads_per_rank = found.value, found.source, found.threads_per_rank
            self.document.unit = found.unit
            record = run.read()
            self.document.library, self.document.host = record.library, record.host
        self.document.runs.append(done)
        self.write("running")
        return done

    def warn_of_threads(self, warn: Callable[[str], None]) -> None:
        threads = {run.np: run.threads_per_rank for run in self.document.runs if run.threads_per_rank is not None}
        if len(set(threads.values())) > 1:
            each = ", ".join(f"{count} at np {np}" for np, count in sorted(threads.items()))
            warn(
                f"threads per rank: {each}; so cores are shared out anew, not added: --threads {min(threads.values())} keeps them equal"
            )

    def write(self, state: State) -> None:
        """Raises RequestError when the folder cannot be written or the disk is full."""
        self.document.state = state
        self.document.rows = tabulate(self.document.runs, self.document.base_np)
        try:
            write_text(self.scale_json, self.document.model_dump_json(by_alias=True, indent=2) + "\n")
            if self.document.rows and state != "running":
                # Imported here: a wrong request need not wait for Plotly.
                from hvscale.scaling.page import page

                shown = page(self.document)
                write_text(self.page, shown)
        except OSError as error:
            raise cannot_write(self.path, error) from error


def settings(**options: Any) -> dict[str, Any]:
    """What was asked of the launch, as a JSON document may hold it: no secrets."""
    placement = options["placement"]
    return {
        "mpi": options["mpi"],
        "transport": options["transport_name"],
        "devices": options["devices"],
        "environment": recordable(named(options["env"])),
        **({"knobs": options["knobs"]} if options.get("knobs") else {}),
        "placement": placement.model_dump(mode="json", exclude_none=True),
    }


def named_failure(what: str, error: HvscaleError) -> HvscaleError:
    """The same failure, which says of what it is."""
    if isinstance(error, RankFailedError):
        return RankFailedError(f"{what}: {error}", error.last_lines)
    return error
