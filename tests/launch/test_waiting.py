"""Which jobs' ranks sleep while they wait."""

import pytest

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunRecord
from hvscale.launch import waiting
from tests.launch.records import CORES, a_record


@pytest.mark.parametrize(
    ("record", "sleeps"),
    [
        (a_record(CORES // 2), False),
        (a_record(CORES // 2 + 1), True),
        (a_record(CORES, placement="docker:rank"), True),
        (a_record(CORES, placement="ssh"), False),  # of the other hosts' cores nothing is known
        (a_record(1, cores=1), False),  # a rank alone waits for nobody
    ],
)
def test_ranks_sleep_where_each_has_fewer_than_two_cores(record: RunRecord, sleeps: bool) -> None:
    assert bool(waiting.environment(record, {}, has_mpi=False)) == sleeps


@pytest.mark.parametrize(
    ("ranks", "microseconds"), [(CORES, 100), (CORES + 1, 200), (4 * CORES, 400), (32 * CORES, 1000)]
)
def test_ranks_sleep_longer_the_more_share_a_core(ranks: int, microseconds: int) -> None:
    """Each poll takes the core from the ranks beside it."""
    assert waiting.environment(a_record(ranks), {}, has_mpi=False) == {"HVSCALE_WAIT_MICROSECONDS": str(microseconds)}


def test_ranks_poll_over_mpi() -> None:
    """Its threads poll, too."""
    assert waiting.environment(a_record(4 * CORES), {}, has_mpi=True) == {}


def test_the_user_decides() -> None:
    assert waiting.environment(a_record(CORES), {"HVSCALE_WAIT": "poll"}, has_mpi=False) == {}
    asleep = waiting.environment(a_record(100 * CORES, placement="ssh"), {"HVSCALE_WAIT": "sleep"}, has_mpi=True)
    assert asleep == {"HVSCALE_WAIT_MICROSECONDS": "100"}
    with pytest.raises(RequestError, match="--env HVSCALE_WAIT=: choose sleep or poll"):
        waiting.environment(a_record(2), {"HVSCALE_WAIT": ""}, has_mpi=False)
