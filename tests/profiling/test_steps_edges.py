"""The edges of steps, from marks and from steps.jsonl, for messages at known times."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hvscale.core.errors import RequestError
from hvscale.profiling.analyze.steps import LoggedSteps, edges_by_rank, gradient_messages, read_step_log, step_edges
from hvscale.profiling.read.events import Events, Recording, no_events
from tests.profiling.conftest import MakeRun

MS = 10**6
OPERATIONS = ("broadcast", "allreduce")
Message = tuple[float, int]  # end in ms, and bytes


def all_reduces(*ranks: list[Message]) -> Recording:
    """The messages of each rank, of 1 ms each."""
    rows = [(rank, end, size) for rank, messages in enumerate(ranks) for end, size in messages]
    rank, end, size = np.array(rows, np.float64).reshape(-1, 3).T
    fields = {
        **vars(no_events()),
        "operations": OPERATIONS,
        "rank": rank.astype(np.int32),
        "operation": np.ones(len(rows), np.uint8),
        "bytes": size.astype(np.int64),
        "start_ns": ((end - 1) * MS).astype(np.int64),
        "duration_ns": np.full(len(rows), MS, np.int64),
        "communicator_size": np.full(len(rows), 2, np.int32),
        "bitwise": np.zeros(len(rows), np.bool_),
        "thread": np.zeros(len(rows), np.int64),
    }
    return Recording("hvprof", Events(**fields), 2, list(range(len(ranks))))


def log_of(*milliseconds: float) -> LoggedSteps:
    seconds = np.array(milliseconds) / 1000
    return LoggedSteps(seconds, np.full(len(seconds), np.nan), np.full(len(seconds), np.nan))


def edges_ms(recording: Recording, log: LoggedSteps | None) -> list[float] | None:
    edges = step_edges(recording, log)
    if edges is None:
        return None
    assert edges.dtype == np.int64
    milliseconds: list[float] = (edges / MS).tolist()
    return milliseconds


# Steps of 1000, 2000 and 1000 ms with two messages each. The second step's last message comes
# 100 ms before the end of its step if the first step starts at 0, and those of the others earlier.
THREE_STEPS: list[Message] = [(500, 60), (800, 40), (1500, 50), (2900, 50), (3500, 30), (3700, 70)]
LOG = log_of(1000, 2000, 1000)


def test_steps_start_as_early_as_their_last_messages_allow() -> None:
    assert edges_ms(all_reduces(THREE_STEPS), LOG) == [-100, 900, 2900, 3900]


def test_only_the_lowest_rank_s_all_reduces_of_data_count() -> None:
    made = all_reduces([*THREE_STEPS, (950, 100), (990, 100)], [(3999, 300)])
    events = made.load()
    operation = np.where((events.rank == 0) & (events.start_ns == 949 * MS), 0, 1).astype(np.uint8)
    bitwise = (events.rank == 0) & (events.start_ns == 989 * MS)
    assert edges_ms(replace(made, events=replace(events, operation=operation, bitwise=bitwise)), LOG) == [
        -100,
        900,
        2900,
        3900,
    ]
    assert edges_ms(replace(made, ranks=[1]), log_of(1000)) == [2999, 3999]


def test_a_long_message_counts_when_it_ends() -> None:
    """The first of two messages in the first step is the last one to end."""
    made = all_reduces([(400, 60), (900, 40), (1800, 100)])
    events = made.load()
    longer = np.where(events.start_ns == 399 * MS, 551 * MS, MS)
    assert edges_ms(replace(made, events=replace(events, duration_ns=longer)), log_of(1000, 1000)) == [-50, 950, 1950]


def test_small_other_all_reduces_do_not_move_the_steps() -> None:
    """A byte more in the second step raises the mean of a step above what the first one sends."""
    assert edges_ms(all_reduces([*THREE_STEPS, (1200, 1)]), LOG) == [-100, 900, 2900, 3900]


@pytest.mark.parametrize(("first", "second", "steps"), [(149, 51, 20), (150, 50, 21), (150, 50, 20)])
def test_nine_of_ten_steps_must_contain_about_their_bytes(first: int, second: int, steps: int) -> None:
    """A step may have up to half more or less; two of 21 steps may have others, two of 20 not."""
    sizes = [first, second, *[100] * (steps - 2)]
    made = all_reduces([(1000 * number + 500, size) for number, size in enumerate(sizes)])
    expected = [1000.0 * number - 500 for number in range(steps + 1)]
    assert edges_ms(made, log_of(*[1000] * steps)) == (None if (first, steps) == (150, 20) else expected)


def test_steps_after_the_last_message_lack_their_bytes() -> None:
    """The 18th of 20 steps sends the bytes of three, so three steps do not contain theirs."""
    made = all_reduces([(1000 * number + 500, 300 if number == 17 else 100) for number in range(18)])
    assert edges_ms(made, log_of(*[1000] * 20)) is None


def test_without_a_whole_log_or_all_messages_the_steps_are_unknown() -> None:
    made = all_reduces(THREE_STEPS)
    assert step_edges(made, None) is None
    assert step_edges(made, replace(LOG, warning="line 2 is damaged")) is None
    assert step_edges(replace(made, overwritten=1), LOG) is None
    assert step_edges(replace(made, events=replace(made.load(), operations=("broadcast", "barrier"))), LOG) is None


@pytest.mark.parametrize("messages", [[], [(500, 0)]])
def test_without_bytes_the_steps_are_unknown(messages: list[Message]) -> None:
    assert step_edges(all_reduces([(900, 100)], messages), log_of(1000)) is not None
    assert step_edges(replace(all_reduces([], messages), ranks=[1]), log_of(1000)) is None
    assert step_edges(Recording("hvprof", no_events(), 2, []), log_of(1000)) is None


def marked(*ranks: list[int], overwritten: int = 0) -> Recording:
    """The marks of ranks 1, 2, ..."""
    steps = {rank: np.array(marks, np.int64) for rank, marks in enumerate(ranks, 1)}
    return Recording("hvprof", no_events(), 4, list(steps), steps=steps, overwritten=overwritten)


@pytest.mark.parametrize(
    ("recording", "edges"),
    [
        (marked([5, 10, 20, 30], [6, 11, 21, 31]), [5, 10, 20, 30]),
        (marked([5, 10]), [5, 10]),
        (marked([5]), None),
        (marked([], [6, 11]), None),
        # Stopped between two ranks' marks.
        (marked([5, 10, 20, 30], [6, 11, 21, 31], [7, 12, 22]), [5, 10, 20]),
        (marked([5, 10, 20], [6, 11]), [5, 10]),
        (marked([5, 10], [6]), [5, 10]),  # no step would be left
        (marked([5, 10, 20, 30], [6, 11]), [5, 10, 20, 30]),  # rank 2 ended early
        (marked([5, 10, 20], [6, 11, 21, 31]), [5, 10, 20]),
        (marked([5, 10, 20], [6, 11], overwritten=1), [5, 10, 20]),
        # The full ring of rank 2 has lost the calls of the first steps.
        (marked([5, 10, 20, 30], [19, 31], overwritten=1), [20, 30]),
        (marked([5, 10, 20, 30], [31], overwritten=1), None),
    ],
)
def test_marks_of_the_lowest_rank_are_the_edges(recording: Recording, edges: list[int] | None) -> None:
    found = step_edges(recording, None)
    assert (None if found is None else found.tolist()) == edges


def test_a_rank_without_a_collective_has_no_ring_that_begins() -> None:
    made = marked([5, 10, 20, 30], [19, 31], overwritten=1)
    silent: Any = SimpleNamespace(parts=[SimpleNamespace(rank=3, slots=5, times=lambda: np.empty((0, 4), np.int64))])
    silent.operations = ()
    found = step_edges(replace(made, events=silent), None)
    assert found is not None
    assert found.tolist() == [20, 30]


def test_marks_take_precedence_over_the_log() -> None:
    made = replace(all_reduces(THREE_STEPS), steps={0: np.array([0, 1000 * MS])})
    assert edges_ms(made, LOG) == [0, 1000]
    assert edges_ms(replace(made, steps={0: np.array([0])}), LOG) == [-100, 900, 2900, 3900]


@pytest.mark.parametrize(
    ("own", "overwritten", "expected"),
    [
        ([110, 190, 310], 0, [110, 190, 310]),
        ([110, 190, 310, 390], 0, [110, 190, 310]),
        ([110], 0, [110, 200, 300]),  # ended early
        ([250], 0, [250, 250, 300]),  # edges ascend
        ([], 0, [100, 200, 300]),
        ([], 1, [100, 200, 300]),
        # After an overflow, the ring of the rank holds an earlier step, too.
        ([10, 110, 190, 310], 1, [110, 190, 310]),
        ([10, 95, 190, 310], 0, [10, 95, 190]),
        ([20, 190, 310], 1, [20, 190, 310]),
    ],
)
def test_each_rank_has_the_edges_of_its_own_marks(own: list[int], overwritten: int, expected: list[int]) -> None:
    recording = marked([100, 200, 300], own, overwritten=overwritten)
    found = edges_by_rank(replace(recording, ranks=[1, 2, 3]), np.array([100, 200, 300]))
    assert {rank: edges.tolist() for rank, edges in found.items()} == {
        1: [100, 200, 300],
        2: expected,
        3: [100, 200, 300],  # has no marks
    }


def test_gradient_messages_are_those_of_the_lowest_rank_with_bytes_by_their_end() -> None:
    made = all_reduces([(30, 4), (10, 1), (20, 0), (25, 8)], [(5, 16)])
    events = made.load()
    end_ns, size, _ = gradient_messages(replace(made, events=replace(events, bitwise=events.bytes == 8)))
    assert ((end_ns / MS).tolist(), size.tolist()) == ([10, 30], [1, 4])
    end_ns, size, _ = gradient_messages(Recording("hvprof", no_events(), 2, []))
    assert (end_ns.tolist(), size.tolist()) == ([], [])


def test_the_columns_of_a_step_log(make_run: MakeRun) -> None:
    run = make_run(2)
    run.steps.write_text('{"seconds": 2, "images": 8, "communication_seconds": 0.5, "loss": 1}\n\n{"seconds": 4}\n')
    log = read_step_log(run)
    assert log is not None
    assert log.seconds.tolist() == [2, 4]
    assert (log.images[0], log.exposed_seconds[0]) == (8, 0.5)
    assert np.isnan([log.images[1], log.exposed_seconds[1]]).all()
    assert (log.steps.tolist(), log.warning, log.lines) == ([1, 2], None, None)


def test_a_step_log_without_a_whole_step(make_run: MakeRun) -> None:
    run = make_run(2)
    run.steps.write_text("")
    assert read_step_log(run) is None
    run.steps.write_text("nonsense\n")
    log = read_step_log(run)
    assert log is not None
    assert (log.seconds.tolist(), log.steps.tolist()) == ([], [])
    assert log.warning is not None


def test_a_step_log_that_cannot_be_read_is_an_error(make_run: MakeRun) -> None:
    run = make_run(2)
    run.steps.mkdir()
    with pytest.raises(RequestError, match=rf"{run.steps} cannot be read: \w"):
        read_step_log(run)
