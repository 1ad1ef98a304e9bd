"""Starts a job that tunes itself, and keeps what it found."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import hvscale.comm_tuning.autotune.rank_side
from hvscale.comm_tuning.autotune.memory import (
    RememberedSettings,
    forget,
    is_remembered,
    memory_folder,
    now,
    recall_all,
    remember,
)
from hvscale.comm_tuning.autotune.moves import live_moves, mpi_words
from hvscale.comm_tuning.autotune.next_start import next_start, sentence
from hvscale.comm_tuning.autotune.rank_side.request import VARIABLE, RankRequest, words
from hvscale.comm_tuning.collectives.broadcast import library_path
from hvscale.comm_tuning.collectives.instrument import find_libmpi
from hvscale.comm_tuning.collectives.measure.mpi_t import value_numbers
from hvscale.comm_tuning.tune.document import Proof, TuneDocument
from hvscale.comm_tuning.tune.outputs import write_outputs
from hvscale.core.autotune_result import FILE, FOLDER, AutotuneResult, read_autotune_result
from hvscale.core.built_library import preloaded
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library, RunFolder, RunRecord, write_atomically
from hvscale.core.statistics import Estimate
from hvscale.launch.options import Instrument, LaunchOptions

STEPS = 150
MAX_REMEMBERED = 32  # of one library and np, passed to the ranks
MIN_STEPS = 20
# Files that describe a study with trials of its own.
OF_STUDIES = ("guide.html", "guide.md", "measurements.csv", "commands.txt")
NOT_TUNED = (
    "autotune: nothing was tuned: no optimizer step followed an all-reduce of all ranks by horovod.torch; `hvscale tune` "
    "tunes any command, with runs of its own"
)


class Autotune:
    """A launch whose job tunes itself."""

    def __init__(self, command: list[str], options: LaunchOptions, steps: int, warn: Callable[[str], None]) -> None:
        """Raises RequestError for steps that are too few."""
        check_steps(steps)
        self.command, self.options, self.steps, self.warn = command, options, steps, warn

    def variables(self, run: RunFolder, record: RunRecord, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables that make the ranks tune the job."""
        moves = live_moves(self.command, self.options, record.library)
        words = mpi_words(moves)
        libmpi = find_libmpi(record.library, environment) if words else None
        numbers = value_numbers(str(libmpi), words) if libmpi is not None else {}
        request = RankRequest(
            steps=self.steps,
            folder=str(run.path / FOLDER),
            library=record.library.name,
            link=str(self.options.placement.link or ""),
            moves=moves,
            numbers=[(name, word, number) for (name, word), number in numbers.items()],
            remembered=self._remembered(record),
        )
        preload = preloaded(library_path(), environment) if "hvscale_broadcast" in moves else {}
        return {**attach_variables(environment), **preload, VARIABLE: request.text()}

    def launch(self, start: Callable[[Instrument], RunFolder], show: Callable[[str], None]) -> RunFolder:
        """Launch the job; `show` gets the line about what was found, also if a rank failed.

        `start` launches it with an instrument, and its errors are raised.
        """
        started: list[RunFolder] = []

        def instrument(run: RunFolder, record: RunRecord, environment: dict[str, str]) -> dict[str, str]:
            started.append(run)
            return self.variables(run, record, environment)

        try:
            return start(instrument)
        finally:
            for run in started:
                if not run.run_json.exists():
                    continue  # it never began, and the error says why
                record = run.read()
                has_failed = record.state == "failed"
                show(keep(run, self.command, self.options, record.library, self.warn, has_failed))
                if proposed := self._propose(run):
                    show(proposed)

    def _propose(self, run: RunFolder) -> str:
        """Add to the result what the next start could try; returns the line about it, or ""."""
        try:
            result = read_autotune_result(run)
            found = next_start(result, self.command, self.options, run.read()) if result is not None else None
            if result is None or found is None:
                return ""
            text = result.model_copy(update={"next_start": found}).model_dump_json(by_alias=True, indent=2)
            write_atomically(run.path / FOLDER / FILE, lambda stream: stream.write(text.encode()))
        except (ValueError, RequestError):  # `keep` has said what is wrong with the result
            return ""
        except OSError as error:
            self.warn(f"cannot write {run.path / FOLDER / FILE}: {error.strerror}")
            return ""
        return sentence(found, result)

    def _remembered(self, record: RunRecord) -> list[dict[str, object]]:
        """The settings that may be this job's; the ranks know which."""
        found = [
            entry
            for entry in recall_all(self.warn)
            if entry.fingerprint.np == record.np and entry.fingerprint.library == record.library.name
        ]
        return [entry.for_ranks() for entry in found[:MAX_REMEMBERED]]


def check_steps(steps: int) -> None:
    """Raises RequestError for a phase that is too short."""
    if steps < MIN_STEPS:
        raise RequestError(f"--autotune-steps {steps}: give at least {MIN_STEPS}")


def keep(
    run: RunFolder,
    command: list[str],
    options: LaunchOptions,
    library: Library,
    warn: Callable[[str], None],
    has_failed: bool,
) -> str:
    """Write the settings' files and remember or forget them; returns the line about the result.

    Settings that are not proven are remembered only if the job has not failed and nothing else is
    remembered for it.
    """
    try:
        result = read_autotune_result(run)
    except ValueError as error:
        return f"autotune: {error}"
    if result is None:
        return NOT_TUNED
    return keep_result(result, run.path / FOLDER, command, options, library, warn, has_failed)


def keep_result(
    result: AutotuneResult,
    folder: Path | None,
    command: list[str],
    options: LaunchOptions,
    library: Library,
    warn: Callable[[str], None],
    has_failed: bool,
) -> str:
    """The same for a result. `folder`: for the settings' files; None writes none."""
    fingerprint, gain = result.fingerprint, result.gain if result.state == "tuned" else None
    settings = result.settings if gain is not None else result.unproven
    files = folder if gain is not None else None
    try:
        if result.drops_remembered and fingerprint is not None:
            forget(fingerprint)
        if not settings or fingerprint is None:
            return summary(result)
        if gain is None and (has_failed or is_remembered(fingerprint)):
            return summary(result)
        if files is not None and gain is not None:
            write_settings(files, command, options.np, options, library, settings, gain)
        remember(
            RememberedSettings(
                fingerprint=fingerprint,
                settings=settings,
                gain=gain,
                command=command,
                launch=options.recorded(),
                library=library,
                saved_at=now(),
            )
        )
    except RequestError as error:
        warn(str(error))
        return summary(result)
    others = f", and for other launchers in {files}" if files is not None else ""
    return f"{summary(result)}; remembered in {memory_folder()}{others}"


def attach_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that load the ranks' part into Python. Raises RequestError."""
    folder = str(Path(hvscale.comm_tuning.autotune.rank_side.__path__[0]).absolute())
    if os.pathsep in folder:
        raise RequestError(f"{folder}: PYTHONPATH cannot hold a path with a colon: install hvscale elsewhere")
    others = environment.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{others}" if others else folder}


def write_settings(
    folder: Path,
    command: list[str],
    np: int,
    options: LaunchOptions,
    library: Library,
    settings: dict[str, str],
    gain: Estimate,
) -> list[Path]:
    """Write settings.toml and the files of libraries and launchers; raises RequestError.

    The folder may hold files of the user: none is removed.
    """
    document = TuneDocument(
        folder=str(folder),
        state="finished",
        command=command,
        np=np,
        launch=options.recorded(),
        library=library,
        proof=Proof(settings=settings, pairs=[], gain=gain, accepted=True),
        winner=settings,
    )
    return write_outputs(folder, document, without=OF_STUDIES, removes_others=False)


def summary(result: AutotuneResult) -> str:
    """The result in one line."""
    gain = result.gain
    if result.unproven:
        return f"autotune: nothing is proven: {result.reason}; the best so far: {words(result.unproven)}"
    if result.state != "tuned" or gain is None:
        kept = "the defaults are kept" if result.state != "not tuned" else "nothing was tuned"
        return f"autotune: {kept}: {result.reason}"
    interval = "" if gain.low is None else f" (95 % interval {gain.low:.2f} to {gain.high:.2f})"
    return f"autotune: {words(result.settings)}: {gain.mean:.2f} times the throughput of the defaults{interval}"
