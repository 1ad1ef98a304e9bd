"""Whether a run's losses are those of the defaults: a sum that is wrong on all ranks alike shows there alone."""

import math
from contextlib import suppress

from hvscale.core.documents import parse_json
from hvscale.core.line_files import read_lines
from hvscale.core.run_folder import RunFolder

COMPARED = 10  # steps; later ones drift apart by rounding
TOLERANCE = 0.05  # another order of adding, or bf16 for fp32, makes far less


def losses(run: RunFolder) -> dict[int, float | None]:
    """Of the first steps, by line of steps.jsonl; None for one that is not finite or not told, nothing for a damaged line."""
    with suppress(OSError):
        found = read_lines(run.steps, _loss)
        return {line: loss for line, loss in zip(found.numbers, found.values, strict=True) if line <= COMPARED}
    return {}


def _loss(line: bytes) -> float | None:
    """Raises ValueError when the line is damaged."""
    try:
        loss = parse_json(line).get("loss")
        return float(loss) if isinstance(loss, int | float) and math.isfinite(loss) else None
    except (AttributeError, OverflowError) as error:
        raise ValueError("not a line of steps.jsonl") from error


def differing_loss(run: RunFolder, reference: RunFolder) -> str | None:
    """The first step at which a run's loss is another than the reference's, in words; None where none is, or neither tells any."""
    of_run, of_reference = losses(run), losses(reference)
    for step in sorted(of_run.keys() & of_reference.keys()):
        found, expected = of_run[step], of_reference[step]
        if expected is None:
            continue
        if found is None or abs(found - expected) > TOLERANCE * max(abs(expected), 1e-6):
            return f"the loss of step {step} is {found}, and {expected} with the defaults"
    return None
