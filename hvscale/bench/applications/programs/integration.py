"""Master and slaves: an integral whose packets go to whoever is free."""

import math
from typing import ClassVar

from hvscale.bench.applications import Application, ApplicationParameter, Result, Sizes, register

FROM, TO = 1, 100
INTEGRAL = math.log((1 + TO) / (1 + FROM))
LARGEST_SECOND_DERIVATIVE = 2 / (1 + FROM) ** 3
UNIT_ROUNDOFF = 2.0**-53


class IntegrationResult(Result):
    integral: float
    packets_of_slaves: list[int]


class Integration(Application):
    name = "integration"
    summary = "master and slaves: the integral of 1/(1+x) over [1, 100], packets go to whoever is free; np = slaves + 1"
    sources = ("integration.c",)
    parameters: ClassVar = {
        # The study names neither: at an interval in a nanosecond its one slave, too, would work for
        # about 550 s.
        "intervals": ApplicationParameter("of the midpoint rule", 4 * 10**8, 55 * 10**10),
        "packets": ApplicationParameter("that the intervals are cut into", 10**3, 10**5),
    }
    result = IntegrationResult
    base_np = 2
    default_np = (2, 3)

    def why_not(self, np: int, sizes: Sizes) -> str | None:
        if np < 2:
            return "a master without a slave computes nothing: np = slaves + 1, so 2 is the least"
        return None

    def problem(self, result: IntegrationResult, sizes: Sizes, serial: None) -> str | None:
        wrong, explained = abs(result.integral - INTEGRAL), allowed(sizes)
        if not wrong <= explained:
            return (
                f"the integral is {result.integral:.17g}, but ln(101/2) is {INTEGRAL:.17g}: "
                f"rule and rounding explain {explained:.2g}, not {wrong:.2g}"
            )
        if sum(result.packets_of_slaves) != sizes["packets"]:
            return f"the slaves returned {sum(result.packets_of_slaves)} packets of {sizes['packets']}"
        return None


def allowed(sizes: Sizes) -> float:
    """The error of the composite midpoint rule, (b-a) h^2 max|f''| / 24, and of adding up in order,
    below n unit roundoffs of the sum of n terms.

    Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, chapter 4.
    """
    width = (TO - FROM) / sizes["intervals"]
    rule = (TO - FROM) * width**2 * LARGEST_SECOND_DERIVATIVE / 24
    longest = math.ceil(sizes["intervals"] / sizes["packets"]) + sizes["packets"]
    return rule + (longest + 8) * UNIT_ROUNDOFF * INTEGRAL


register(Integration())
