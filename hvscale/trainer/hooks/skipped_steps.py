"""Ends training after several skipped steps in a row."""

from hvscale.core.errors import RequestError
from hvscale.trainer.checkpoints.store import CheckpointFolder
from hvscale.trainer.progress import warn
from hvscale.trainer.trainer import Hook, StepReport


class SkippedSteps(Hook):
    """Warns about skipped steps and ends training after several in a row.

    Steps that were skipped because the fp16 loss scale was too high do not count.
    """

    def __init__(self, checkpoints: CheckpointFolder) -> None:
        """`checkpoints`: the error message names the newest one."""
        self.checkpoints = checkpoints
        self.in_a_row = 0

    def after_step(self, step: StepReport) -> None:
        """Raises RequestError, on all ranks, if too many steps in a row were skipped."""
        if not step.update.skipped or step.update.overflowed:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        if self.in_a_row >= self.trainer.update.max_skipped:
            self._fail(step.number)
        if self.trainer.ranks.rank == 0:
            warn(
                f"step {step.number} is skipped: the loss or a gradient is not finite (loss on this rank: {step.loss})"
            )

    def _fail(self, step: int) -> None:
        last = next(iter(self.checkpoints.files()), None)
        self.trainer.ranks.fail(
            RequestError(
                f"the loss or a gradient is not finite in {self.in_a_row} steps in a row, up to step {step}: "
                "lower --learning-rate"
                + (f"; the last good checkpoint is {last}" if last else "; there is no checkpoint yet")
            )
        )
