"""Saves a checkpoint and ends training when a scheduler asks a rank to stop."""

import signal
from types import FrameType
from typing import Any

from hvscale.core.errors import SavedError
from hvscale.trainer.checkpoints.hook import save_checkpoint
from hvscale.trainer.checkpoints.store import CheckpointFolder
from hvscale.trainer.trainer import Hook, StepReport, Trainer

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # schedulers send them before they end a job


class StopSignals(Hook):
    """While training, SIGTERM and SIGUSR1 set `trainer.stop_requested`, and do not end the process.

    `hvscale.trainer.train` blocks SIGUSR1 until then, so that an earlier one is handled now.
    """

    def on_start(self, trainer: Trainer) -> None:
        super().on_start(trainer)
        self.previous: dict[signal.Signals, Any] = {
            number: signal.signal(number, self._request_stop) for number in STOP_SIGNALS
        }
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})

    def on_end(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # it would end the evaluation
        for number, handler in self.previous.items():
            # Threads that began during training do not block it, and one may still load a batch.
            would_end = number == signal.SIGUSR1 and handler == signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if would_end else handler)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self.trainer.stop_requested = True


class SaveAndStop(Hook):
    """Saves a checkpoint and ends the job when any rank was asked to stop."""

    def __init__(self, checkpoints: CheckpointFolder) -> None:
        self.checkpoints = checkpoints

    def after_step(self, step: StepReport) -> None:
        """Raises SavedError, on all ranks."""
        if step.update.interrupt and step.number != self.trainer.steps:
            file = save_checkpoint(self.trainer, self.checkpoints)
            self.trainer.ranks.fail(
                SavedError(f"asked to stop: saved {file} after step {step.number}; resume with --resume {file}")
            )
