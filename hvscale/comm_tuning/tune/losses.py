"""Compares the losses of two runs.

A sum that is wrong in the same way on all ranks shows only there.
"""

import math
from contextlib import suppress

from hvscale.core.documents import parse_json
from hvscale.core.line_files import read_lines
from hvscale.core.run_folder import RunFolder

COMPARED_STEPS = 10  # later steps drift apart by rounding
TOLERANCE = 0.05  # relative; another order of summation, or bf16 instead of fp32, differs far less


def losses(run: RunFolder) -> dict[int, float | None]:
    """Losses of the first steps, by line of steps.jsonl.

    None for a loss that is missing or not finite; damaged lines are skipped.
    """
    with suppress(OSError):
        found = read_lines(run.steps, _loss)
        return {line: loss for line, loss in zip(found.numbers, found.values, strict=True) if line <= COMPARED_STEPS}
    return {}


def _loss(line: bytes) -> float | None:
    """Raises ValueError when the line is damaged."""
    try:
        loss = parse_json(line).get("loss")
        return float(loss) if isinstance(loss, int | float) and math.isfinite(loss) else None
    except (AttributeError, OverflowError) as error:
        raise ValueError("not a line of steps.jsonl") from error


def differing_loss(run: RunFolder, reference: RunFolder) -> str | None:
    """Names the first step whose loss differs from the reference's.

    None where none differs or none is known.
    """
    of_run, of_reference = losses(run), losses(reference)
    for step in sorted(of_run.keys() & of_reference.keys()):
        found, expected = of_run[step], of_reference[step]
        if expected is None:
            continue
        if found is None or abs(found - expected) > TOLERANCE * max(abs(expected), 1e-6):
            return f"the loss of step {step} is {found}, and {expected} with the defaults"
    return None
