"""Searches of --autotune among given candidates, and running them to their end."""

from collections.abc import Callable, Sequence

from hvscale.comm_tuning.autotune.rank_side.candidates import JobShape, Space
from hvscale.comm_tuning.autotune.rank_side.request import Remembered, Settings
from hvscale.comm_tuning.autotune.rank_side.search import Block, BlockTimes, LiveSearch, Outcome


class Fixed(Space):
    """Candidates that are given, without timed messages."""

    def __init__(self, found: Sequence[Settings]) -> None:
        super().__init__({}, JobShape(1 << 26, 1.0))
        self.found = list(found)

    def candidates(self) -> list[Settings]:
        return self.found


def among(steps: int, found: Sequence[Settings], remembered: Remembered | None = None) -> LiveSearch:
    """A search among these candidates."""
    return LiveSearch(steps, Fixed(found), remembered)


def drive(search: LiveSearch, times_of: Callable[[Block], BlockTimes]) -> tuple[Outcome, list[Block]]:
    """Run the search to its end; returns its outcome and its blocks."""
    plan, blocks = search.plan(), list[Block]()
    block = next(plan)
    while True:
        blocks.append(block)
        try:
            block = plan.send(times_of(block))
        except StopIteration as ended:
            return ended.value, blocks
