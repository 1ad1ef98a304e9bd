"""Finding steps from marks and steps.jsonl, on the clock of the messages."""

from dataclasses import replace

import numpy as np

from hvscale.profiling.analyze.steps import LoggedSteps, read_step_log, step_edges
from tests.profiling.conftest import MakeRun
from tests.profiling.test_compare import NP, START_NS, STEPS, recorded


def test_steps_are_found_on_the_clock_of_the_messages() -> None:
    run = recorded()
    assert run.edges_ns is not None
    assert len(run.edges_ns) == STEPS + 1
    starts = run.recording.load().start_ns[~run.recording.load().bitwise]
    in_step = np.bincount(np.searchsorted(run.edges_ns, starts) - 1)
    assert in_step.tolist() == [2 * NP] * STEPS


def test_unrelated_all_reduces_give_no_steps() -> None:
    run = recorded()
    assert run.log is not None
    uneven = LoggedSteps(run.log.seconds[:13] * 3, run.log.images[:13], run.log.exposed_seconds[:13])
    events = run.recording.load()
    in_a_burst = replace(events, start_ns=START_NS + (events.start_ns - START_NS) // 100)
    assert step_edges(replace(run.recording, events=in_a_burst), uneven) is None
    assert step_edges(replace(run.recording, overwritten=1), run.log) is None


def test_a_truncated_or_damaged_step_log(make_run: MakeRun) -> None:
    run = make_run(2)
    assert read_step_log(run) is None
    run.steps.write_text('{"seconds": 0.5, "images": 8}\n{"seconds": 0.25, "communication_seconds": 0.1}\n{"seco')
    log = read_step_log(run)
    assert log is not None
    assert log.seconds.tolist() == [0.5, 0.25]
    assert np.isnan(log.images[1])
    impossible = '{"seconds": 1e-300}', '{"seconds": 1, "images": 1e300}'
    for damaged in ("{}", "[]", "nonsense", '{"seconds": -1}', '{"seconds": NaN}', '{"seconds": "x"}', *impossible):
        run.steps.write_text(f'{{"seconds": 1}}\n{damaged}\n{{"seconds": 3}}\n')
        log = read_step_log(run)
        assert log is not None
        assert log.seconds.tolist() == [1, 3]
        assert log.steps.tolist() == [1, 3]
        assert log.warning == f"{run.steps}: line 2 is damaged and was dropped"
