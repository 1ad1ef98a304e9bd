"""The interface of everything that acts around the training step."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvscale.trainer.trainer import StepReport, Trainer


class Hook:
    """Called at fixed points of training, on every rank; each method does nothing by default.

    The trainer calls its hooks in their order. A hook may raise to end training; `on_end` is then
    still called for each hook that has started, in reverse order. `self.trainer` is set by
    `on_start`.
    """

    trainer: "Trainer"

    def on_start(self, trainer: "Trainer") -> None:
        """Before the first step. The ranks have equal parameters."""
        self.trainer = trainer

    def before_step(self) -> None:
        """Before each step. May set `trainer.interrupt` and `trainer.hosts_changed`.

        All ranks see these in the `StepReport` of this step.
        """

    def after_epoch(self, epoch: int, mean_loss: float) -> None:
        """At the end of an epoch, before `after_step` of its last step. `epoch` counts from 1."""

    def after_step(self, step: "StepReport") -> None:
        """After each step. Its time belongs to the next step; see `Trainer.restart_clock`."""

    def on_end(self) -> None:
        """After the last step, or after an error."""
