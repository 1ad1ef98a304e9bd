"""measurements.csv: every trial of the search, and every run of the proof."""

from collections.abc import Iterator

from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, TunedJob, register
from hvscale.report.csv_file import csv_text

COLUMNS = ("kind", "number", "start", "state", "throughput", "throughput_low", "throughput_high", "unit")
LAST_COLUMNS = ("steps", "seconds", "run", "problem")


def text(tuned: TunedJob) -> str:
    """The rows. `number`: of the trial or the pair. An empty knob means its default."""
    document = tuned.document
    searched = [choice.knob for choice in document.space if choice.values]
    knobs = dict.fromkeys([*searched, *(knob for trial in document.trials for knob in trial.settings), *document.fixed])
    columns = [*COLUMNS, *(f"set {knob}" for knob in knobs), *LAST_COLUMNS]
    return csv_text(columns, [*trials(tuned), *pairs(tuned)])


def trials(tuned: TunedJob) -> Iterator[dict[str, object]]:
    for trial in tuned.document.trials:
        found = trial.throughput
        yield {
            **trial.model_dump(include={"number", "start", "state", "steps", "seconds", "run", "problem"}),
            "kind": "trial",
            "throughput": found.mean if found else None,
            "throughput_low": found.low if found else None,
            "throughput_high": found.high if found else None,
            "unit": tuned.document.unit,
            **knob_columns({**tuned.document.fixed, **trial.settings}),
        }


def pairs(tuned: TunedJob) -> Iterator[dict[str, object]]:
    """Two rows for each pair: the defaults, and the best settings."""
    document = tuned.document
    proof = document.proof
    if proof is None:
        return
    for number, pair in enumerate(proof.pairs, 1):
        for kind, throughput, run, settings in (
            ("proof, defaults", pair.default, pair.default_run, {}),
            ("proof, tuned", pair.tuned, pair.tuned_run, proof.settings),
        ):
            yield {
                "kind": kind,
                "number": number,
                "state": "measured",
                "throughput": throughput,
                "unit": document.unit,
                "run": run,
                **knob_columns({**document.fixed, **settings}),
            }


def knob_columns(settings: dict[str, str]) -> dict[str, object]:
    return {f"set {knob}": text for knob, text in settings.items()}


register(OutputFormat(file="measurements.csv", what="every trial, and every run of the proof", text=text))
