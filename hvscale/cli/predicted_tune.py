"""`hvscale tune --predict-np`: settings for more ranks than are at hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hvscale.cli.console import measure_and_print, print_message, results, spinner
from hvscale.cli.launch_options import resolve
from hvscale.core.errors import RequestError
from hvscale.launch.options import LaunchOptions
from hvscale.report.csv_file import write_csv

if TYPE_CHECKING:
    from hvscale.prediction.tuning.document import PredictedTune

STEPS = 30  # of each replay
PAIRS = 5  # replays of each candidate
SETTINGS = "settings.toml"


def tune_for_size(
    runs: Sequence[str],
    predict_np: int,
    np: int | None,
    options: LaunchOptions,
    *,
    fix: list[str],
    pairs: int | None,
    steps: int | None,
    cores: int | None,
    json: bool,
    csv: Path | None,
) -> None:
    """Search the model, prove its candidates by replay, and print which part is proven.

    `runs`: the recording, and profiled runs of the job or its replay. `np`: of the replays, None
    for as many as were recorded.
    """
    from hvscale.comm_tuning.tune.job_space import fixed_settings
    from hvscale.core.run_folder import RunFolder
    from hvscale.prediction.tuning.document import proof_table
    from hvscale.prediction.tuning.plan import PredictedTuneRequest, plan_proof

    def show(document: "PredictedTune") -> None:
        results().print(proof_table(document).table(), answer(document), sep="\n\n", highlight=False)

    request = PredictedTuneRequest(
        predict_np=predict_np,
        np=np,
        options=options,
        pairs=PAIRS if pairs is None else pairs,
        steps=STEPS if steps is None else steps,
        cores=cores,
        fixed=fixed_settings(fix),
    )
    with spinner("searching the model"):
        study = plan_proof([RunFolder.open(Path(run)) for run in runs], request, resolve, write_settings)
    measure_and_print(
        study,
        json,
        csv,
        write_csv=lambda document, path: write_csv(path, document.rows),
        show=show,
        last=f"folder: {study.path}",
        page="plot",
    )
    print_message(f"settings: {study.path / SETTINGS}")


def answer(document: "PredictedTune") -> str:
    """The verdict, and how to finish the proof if it is not whole."""
    if document.choice is not None and document.verdict is not None:
        return document.verdict
    return f"{document.verdict or 'no proof yet'}\nto resume, run the same command with --run {document.folder}"


def write_settings(document: "PredictedTune") -> None:
    """Write the chosen settings for --settings. Raises RequestError if it cannot be written."""
    from hvscale.comm_tuning.tune.outputs.formats.settings_toml import settings_toml
    from hvscale.core.run_folder import cannot_write, write_text

    path, launch = Path(document.folder) / SETTINGS, document.launch[document.choice or document.baseline]
    options = {"mpi": launch.mpi}
    if launch.transport:
        options["transport"] = launch.transport
    if launch.devices != "all":
        options["devices"] = launch.devices
    try:
        write_text(path, settings_toml(options, document.settings or {}, [document.verdict or ""]))
    except OSError as error:
        raise cannot_write(path.parent, error) from error


def refuse_options(names: Sequence[str], text: str) -> None:
    """Raise RequestError if options were given that do not apply. `text`: when they do."""
    if names:
        flags = ", ".join("--" + name.replace("_", "-") for name in names)
        raise RequestError(f"{flags}: only {text}")
