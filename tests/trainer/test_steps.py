"""A steps.jsonl with damaged lines: each reader drops and reports them and keeps the others."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.comm_tuning.tune.steps import losses
from hvscale.core.line_files import LONGEST_LINE_BYTES, damaged_lines
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.steps import read_step_log
from hvscale.studies.throughput import read_throughput
from hvscale.trainer.loggers.logger_process import NewSteps
from hvscale.trainer.steps_file import STEPS_SCHEMA, StepRecord, StepsFile, keep_steps, parse_step_record

STEPS = 6
# Like the trainer's steps; `seconds` identifies the line.
STEP_REPORTS = [
    StepRecord(step, 9, 32, 0.1 * step, None if step == 3 else 0.5 / step, 1e-4, 0.001, 0.02) for step in range(1, 7)
]
LINES = [json.dumps({"schema": STEPS_SCHEMA, **asdict(step)}).encode() + b"\n" for step in STEP_REPORTS]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.logs.mkdir()
    return folder


@given(place=st.integers(0, sum(map(len, LINES)) - 1), byte=st.integers(0, 255), how=st.sampled_from("fri"))
def test_one_wrong_byte_damages_only_the_lines_it_touches(run: RunFolder, place: int, byte: int, how: str) -> None:
    """The byte is replaced, removed or inserted. A lost newline damages two lines."""
    whole = b"".join(LINES)
    damaged = whole[:place] + (b"" if how == "r" else bytes([byte])) + whole[place + (how != "i") :]
    run.steps.write_bytes(damaged)
    first = whole[:place].count(b"\n")
    touched = {first, first + 1} if whole[place : place + 1] == b"\n" else {first}
    expected = {step.seconds for number, step in enumerate(STEP_REPORTS) if number not in touched}

    log = read_step_log(run)
    assert log is not None
    assert expected <= set(log.seconds.tolist())
    assert len(log.seconds) <= STEPS
    read_throughput(run, 2, None, lambda text: None)
    losses(run)
    with NewSteps(run.steps) as new_steps:
        assert expected <= {step.seconds for step in new_steps()}

    with StepsFile(run.steps, after=STEPS) as file:
        file.write(StepRecord(STEPS + 1, 9, 32, 7.0, 0.1, 1e-4, 0.001, 0.02))
    lines = [
        parse_step_record(line) for line in run.steps.read_bytes().removesuffix(b"\n").split(b"\n")
    ]  # every line is intact
    assert expected <= {step.seconds for step in lines}
    assert lines[-1].step == STEPS + 1


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff" + LINES[2],
        LINES[2][:-20] + b"\n",
        LINES[2].replace(b'"seconds": 0.3', b'"seconds": NaN'),
        LINES[2].replace(b'"seconds": 0.3', b'"seconds": "0.3"'),
        LINES[2].replace(b'"step": 3', b'"step": true'),
        LINES[2].replace(b'"step": 3', b'"step": 1e400'),
        b"[" * 100_000 + b"\n",
        b"[]\n",
        b"9" * 5000 + b"\n",
        LINES[2][:-1] + b" " * 2 * LONGEST_LINE_BYTES + b"\n",
    ],
    ids=lambda damage: repr(damage[:20]),
)
def test_damaged_lines_are_dropped_and_reported(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_bytes(b"".join([*LINES[:2], damage, *LINES[3:]]))
    warnings: list[str] = []
    with StepsFile(file, after=5, warn=warnings.append):
        pass
    assert warnings == [f"{file}: line 3 is damaged and was dropped"]
    assert file.read_bytes() == b"".join([*LINES[:2], *LINES[3:5]])


def test_incomplete_last_line_does_not_merge_with_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_bytes(b"".join(LINES)[:-30])
    with StepsFile(file, after=5) as steps:
        steps.write(STEP_REPORTS[5])
    assert file.read_bytes() == b"".join(LINES)
    file.write_bytes(b"".join(LINES)[:-1])
    assert keep_steps(file, STEPS) is None
    assert file.read_bytes() == b"".join(LINES)


def test_losses_are_compared_by_line(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.steps.write_bytes(b"".join([LINES[0], b"\xff\n", *LINES[2:]]))
    assert losses(run) == {1: 0.5, 3: None, 4: 0.125, 5: 0.1, 6: pytest.approx(0.5 / 6)}


def test_many_damaged_lines_give_one_short_sentence() -> None:
    text = damaged_lines(Path("run/steps.jsonl"), list(range(3, 1000, 2)))
    assert text == "run/steps.jsonl: lines 3, 5, 7, 9, 11 and 494 more are damaged and were dropped"
