"""Master and workers: an integral whose packets go to the next free worker."""

import math
from typing import ClassVar

from hvscale.bench.applications import Application, ApplicationParameter, ProgramResult, Sizes, register

FROM, TO = 1, 100
INTEGRAL = math.log((1 + TO) / (1 + FROM))
LARGEST_SECOND_DERIVATIVE = 2 / (1 + FROM) ** 3
UNIT_ROUNDOFF = 2.0**-53


class IntegrationResult(ProgramResult):
    integral: float
    packets_per_worker: list[int]


class Integration(Application):
    name = "integration"
    summary = "master and workers: the integral of 1/(1+x) over [1, 100], packets go to the next free worker; np = workers + 1"
    sources = ("integration.c",)
    parameters: ClassVar = {
        # The study gives neither. At one interval per nanosecond a single worker needs about 550 s,
        # as in the study.
        "intervals": ApplicationParameter("of the midpoint rule", 4 * 10**8, 55 * 10**10),
        "packets": ApplicationParameter("into which the intervals are divided", 10**3, 10**5),
    }
    result = IntegrationResult
    base_np = 2
    default_np = (2, 3)

    def unsupported_reason(self, np: int, sizes: Sizes) -> str | None:
        if np < 2:
            return "it needs a master and at least one worker: use np 2 or more"
        return None

    def check_result(self, result: IntegrationResult, sizes: Sizes, serial: None) -> str | None:
        error, bound = abs(result.integral - INTEGRAL), error_bound(sizes)
        if not error <= bound:
            return (
                f"the integral is {result.integral:.17g}, but ln(101/2) is {INTEGRAL:.17g}: "
                f"the error {error:.2g} exceeds the bound {bound:.2g} of the rule and of rounding"
            )
        if sum(result.packets_per_worker) != sizes["packets"]:
            return f"the workers returned {sum(result.packets_per_worker)} of {sizes['packets']} packets"
        return None


def error_bound(sizes: Sizes) -> float:
    """The error bound of the composite midpoint rule, (b-a) h^2 max|f''| / 24, plus that of
    summation in order, n unit roundoffs of the sum of n terms.

    Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, chapter 4.
    """
    width = (TO - FROM) / sizes["intervals"]
    rule = (TO - FROM) * width**2 * LARGEST_SECOND_DERIVATIVE / 24
    longest = math.ceil(sizes["intervals"] / sizes["packets"]) + sizes["packets"]
    return rule + (longest + 8) * UNIT_ROUNDOFF * INTEGRAL


register(Integration())
