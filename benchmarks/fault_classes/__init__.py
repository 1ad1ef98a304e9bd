"""Classes of faults, each in a file that registers itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvscale.core.registry import Registry

if TYPE_CHECKING:
    from fault_classes._try import Try


def available() -> str | None:
    """Return None: the class needs nothing special."""
    return None


@dataclass(frozen=True)
class FaultClass:
    """What a try does, and how often.

    `attempt` prepares, disturbs and judges; it raises LostError. `tries`: of a whole campaign.
    `sample`: of the sample in the test suite. `why_not`: why this machine cannot run it, or None.
    """

    attempt: "Callable[[Try], None]"
    tries: int
    sample: int
    why_not: Callable[[], str | None] = available


FAULTS: Registry[FaultClass] = Registry("fault class", "fault_classes")
