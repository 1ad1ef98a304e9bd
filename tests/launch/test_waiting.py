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
    assert waiting.environment(record, {}) == ({"HVSCALE_WAIT": "sleep"} if sleeps else {})


def test_the_user_decides() -> None:
    assert waiting.environment(a_record(CORES), {"HVSCALE_WAIT": "poll"}) == {}
    assert waiting.environment(a_record(2, placement="ssh"), {"HVSCALE_WAIT": "sleep"}) == {"HVSCALE_WAIT": "sleep"}
    with pytest.raises(RequestError, match="--env HVSCALE_WAIT=: choose sleep or poll"):
        waiting.environment(a_record(2), {"HVSCALE_WAIT": ""})
