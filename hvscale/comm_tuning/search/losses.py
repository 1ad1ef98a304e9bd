"""Whether a run's losses are those of the defaults: a sum that is wrong on all ranks alike shows there alone."""

import json
import math
from contextlib import suppress

from hvscale.run_folder import RunFolder

COMPARED = 10  # steps; later ones drift apart by rounding
TOLERANCE = 0.05  # another order of adding, or bf16 for fp32, makes far less


def losses(run: RunFolder) -> list[float | None]:
    """Of the first steps, as steps.jsonl tells them; None for one that is not finite or not told."""
    found: list[float | None] = []
    with suppress(OSError), run.steps.open() as stream:
        for line in stream:
            with suppress(ValueError, AttributeError):
                loss = json.loads(line).get("loss")
                found.append(float(loss) if isinstance(loss, int | float) and math.isfinite(loss) else None)
            if len(found) == COMPARED:
                break
    return found


def differing_loss(run: RunFolder, reference: RunFolder) -> str | None:
    """The first step at which a run's loss is another than the reference's, in words; None where none is, or neither tells any."""
    for step, (found, expected) in enumerate(zip(losses(run), losses(reference), strict=False), 1):
        if expected is None:
            continue
        if found is None or abs(found - expected) > TOLERANCE * max(abs(expected), 1e-6):
            return f"the loss of step {step} is {found}, and {expected} with the defaults"
    return None
