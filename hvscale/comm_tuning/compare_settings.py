"""Runs a command under several named settings in turns: throughput, gain, and what became of the communication."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hvscale.comm_tuning.knobs.library import libraries
from hvscale.comm_tuning.knobs.settings import target_of, with_settings
from hvscale.comm_tuning.named_settings import NAMED, NamedSettings
from hvscale.comm_tuning.settings_file import with_settings_file
from hvscale.errors import RequestError
from hvscale.profiled_launch import profiled_launch
from hvscale.profiling.bins import parse_bins
from hvscale.profiling.compare import Comparison, compare
from hvscale.run_folder import RunFolder, default_run_path
from hvscale.scaling.estimate import Estimate, estimate
from hvscale.scaling.throughput import Metric, read_throughput

# What a name ends with that is a file's.
FILE = ".toml"


class SettingsRow(BaseModel):
    """One of the settings. `throughput` over its fresh starts; `gain`: its ratio to the first ones' in the same round, None for those."""

    settings: str
    knobs: dict[str, str]
    runs: list[str]
    throughputs: list[float]
    throughput: Estimate
    gain: Estimate | None


class SettingsComparison(BaseModel):
    """What `hvscale compare-settings --json` prints. `profiles`: the first settings' last run beside each of the others', by message size."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Annotated[Literal["hvscale/compare-settings/1"], Field(alias="schema")] = "hvscale/compare-settings/1"
    folder: str
    command: list[str]
    np: int
    unit: str | None = None
    rows: list[SettingsRow] = []
    profiles: list[Comparison] = []
    warnings: list[str] = []


def compare_settings(
    names: list[str],
    command: list[str],
    *,
    repeats: int,
    metric: str | None,
    bins: str,
    launch: dict[str, Any],
    starting: Callable[[str, int], None],
    warn: Callable[[str], None],
) -> SettingsComparison:
    """Measure `command` under each of the settings, `repeats` fresh starts of each, in turns.

    `launch`: keywords of `hvscale.launch.launch`. Raises RequestError for what cannot be measured before anything is started, then what a launch
    raises, and UntrustedError where a run tells no throughput.
    """
    if len(names) < 2 or len({label(name) for name in names}) != len(names):
        raise RequestError(f"{','.join(names)}: name two settings or more, each once, of {known()}")
    if repeats < 1:
        raise RequestError(f"--repeat {repeats}: at least one start of each is needed")
    parse_bins(bins)
    pattern = Metric.parse(metric) if metric is not None else None
    jobs = {name: job_of(name, command, launch) for name in names}
    folder = (launch["run_path"] or default_run_path(["compare-settings", *command])).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise RequestError(f"{folder} holds something already: give another folder with --run")
    np = launch["np"]
    document = SettingsComparison(folder=str(folder), command=command, np=np)

    def warn_once(text: str) -> None:
        if text not in document.warnings:
            document.warnings.append(text)
            warn(text)

    runs: dict[str, list[RunFolder]] = {name: [] for name in names}
    found: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(1, repeats + 1):
        for name, job in jobs.items():
            starting(name, repeat)
            options = {**job, "run_path": folder / f"{label(name)}-repeat-{repeat}"}
            runs[name].append(profiled_launch(command=command, warn=warn_once, **options))
            throughput = read_throughput(runs[name][-1], np, pattern, warn_once)
            found[name].append(throughput.value)
            document.unit = throughput.unit
    first = names[0]
    for name in names:
        ratios = [after / before for before, after in zip(found[first], found[name], strict=True)]
        document.rows.append(
            SettingsRow(
                settings=name,
                knobs=jobs[name]["knobs"],
                runs=[run.path.name for run in runs[name]],
                throughputs=found[name],
                throughput=estimate(found[name]),
                gain=estimate(ratios) if name != first else None,
            )
        )
    document.profiles = [compare(runs[first][-1], runs[name][-1], bins) for name in names[1:]]
    return document


def known() -> str:
    return f"{', '.join(NAMED)}, or files such as settings{FILE}"


def label(name: str) -> str:
    """What the runs under these settings are called."""
    return Path(name).stem if name.endswith(FILE) else name


def job_of(name: str, command: list[str], launch: dict[str, Any]) -> dict[str, Any]:
    """The launch's keywords under these settings. Raises RequestError when its libraries cannot do them."""
    if name.endswith(FILE):
        keywords = with_settings_file(Path(name), {**launch, "knobs": []})
        return with_settings(keywords["knobs"], command, keywords)
    settings = NAMED.get(name)
    if settings is None:
        raise RequestError(f"{name}: no such settings; known are {known()}")
    check_library(name, settings, command, launch)
    refused: RequestError | None = None
    for way in settings.ways:
        try:
            return with_settings(list(way), command, launch)
        except RequestError as error:
            refused = error
    raise RequestError(f"{name}: {refused}")


def check_library(name: str, settings: NamedSettings, command: list[str], launch: dict[str, Any]) -> None:
    for library in libraries():
        if library.key == settings.library and library.in_job(target_of([], command, launch)) is not True:
            raise RequestError(
                f"{name}: this job's Horovod is built without {library.name}; a set-up on a machine with CUDA builds it in"
            )


def settings_rows(document: SettingsComparison) -> list[list[str]]:
    """The cells of the table: settings, throughput with its interval, gain with its interval, and what to make of it."""
    rows = []
    for row in document.rows:
        gain = row.gain
        if gain is None:
            words = ["", "", ""]
        elif gain.low is None or gain.high is None:
            words = [percent(gain.mean), "", "unknown: one start"]
        else:
            same = gain.low <= 1 <= gain.high
            verdict = "no difference" if same else "faster" if gain.mean > 1 else "slower"
            words = [percent(gain.mean), f"{percent(gain.low)} to {percent(gain.high)}", verdict]
        rows.append([row.settings, f"{row.throughput.mean:.4g}", *words])
    return rows


def percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"
