"""The training loop of one rank. Everything except the step itself is done by hooks."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from hvscale import profiling
from hvscale.trainer.checkpoints.store import Checkpoint, restore_random_state, seed_rank
from hvscale.trainer.config import PUBLIC_EPOCH_BATCHES, TrainConfig
from hvscale.trainer.data.batches import Prefetch
from hvscale.trainer.optimizer import broadcast_state, learning_rate, make_optimizer, scaling_factor
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.step import StepUpdate, UpdateResult
from hvscale.trainer.system.precision import ComputeFormat
from hvscale.trainer.tasks.workload import Workload

# Returns the inputs and targets of batch number N.
LoadBatch = Callable[[int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class StepReport:
    """One finished step, as measured on this rank."""

    number: int
    """Counted from 1."""
    seconds: float
    """From the end of the previous step to the end of this one."""
    loss: float
    """This rank's loss; may be NaN or infinite."""
    epoch_loss: float | None
    """Mean loss of all ranks over the epoch that this step ended."""
    learning_rate: float
    data_wait_seconds: float
    update: UpdateResult


class Hook:
    """Base class of what runs around the training step, on every rank. Methods do nothing here.

    The trainer calls its hooks in order. A hook may raise to end training; `on_end` is still called
    for each started hook, in reverse order. `on_start` sets `self.trainer`.
    """

    trainer: "Trainer"

    def on_start(self, trainer: "Trainer") -> None:
        """Called before the first step, when all ranks have equal parameters."""
        self.trainer = trainer

    def before_step(self) -> None:
        """Called before each step. May set `trainer.interrupt` and `trainer.hosts_changed`.

        All ranks see both in this step's `StepReport`.
        """

    def after_epoch(self, epoch: int, mean_loss: float) -> None:
        """Called at the end of an epoch, before `after_step`. `epoch` counts from 1."""

    def after_step(self, step: StepReport) -> None:
        """Called after each step. Its time counts for the next step: see `restart_clock`."""

    def on_end(self) -> None:
        """Called after the last step or after an error."""


class Trainer:
    """Trains a model on one rank of a job.

    After each step a hook may set `steps` (the total number of steps; None if not known yet) and
    call `stop` and `restart_clock`.
    """

    def __init__(
        self,
        config: TrainConfig,
        ranks: Ranks,
        model: nn.Module,
        workload: Workload,
        compute_format: ComputeFormat,
        resume_from: Checkpoint | None = None,
        root: int = 0,
    ) -> None:
        """Broadcasts the model and the optimizer of rank `root`. Collective.

        Only rank `root` needs their tensors in `resume_from`.
        """
        self.config, self.ranks, self.model, self.workload = config, ranks, model, workload
        self.compute_format = compute_format
        self.device = next(model.parameters()).device
        self.batches_per_step = config.batches_per_allreduce
        self.steps_per_epoch = workload.steps_per_epoch
        self.optimizer = ranks.all_or_fail(lambda: make_optimizer(config, workload, model, ranks.hvd))
        self.update = StepUpdate(config, ranks, model, self.optimizer, compute_format)
        self.schedule = learning_rate(
            config, workload.learning_rate, self.steps_per_epoch, scaling_factor(config, ranks.hvd)
        )
        self.epoch_loss = EpochLoss(self.device)
        self.step = 0
        self.epoch_shift = 0  # added to a step's number: its number if np had always been the same
        self.steps = config.steps or (config.epochs * self.steps_per_epoch if config.epochs else None)
        self.step_seconds: list[float] = []
        self.stop_requested = False  # a signal told this rank to save and stop
        self.interrupt = False  # for one step: tells all ranks that this rank must act after it
        self.hosts_changed: bool | None = None  # None if the job is not elastic
        self.heartbeat = 0  # changes at least once a step
        self.ignores_steps = False  # `steps` shapes the schedule but does not end training
        self._stopped = False
        self._clock = 0.0
        if resume_from is not None:
            self.load_state_dict(resume_from)
        if config.seconds is None:
            self.steps = self.steps or PUBLIC_EPOCH_BATCHES
        broadcast_state(model, self.optimizer, ranks.hvd, root)

    def state_dict(self) -> Checkpoint:
        """The state to resume from after this step, without the ranks' random states.

        Its tensors are those of the model and the optimizer, not copies.
        """
        return Checkpoint(
            step=self.step,
            steps=self.steps,
            model=self.model.state_dict(),
            model_options=self.workload.model_options,
            optimizer=self.optimizer.state_dict(),
            scaler=self.update.scaler.state_dict(),
            random=[],
            compute_format=asdict(self.compute_format),
            config=self.config.model_dump(mode="json"),
            data_position=self.workload.data_position(self.step),
        )

    def load_state_dict(self, state: Checkpoint) -> None:
        """Continue after the step of `state`.

        If `state` has no tensors, this rank receives them by broadcast later.
        """
        self.step = state.step
        self.epoch_shift = self.workload.resume_at(state.step, state.data_position) - state.step
        if state.model:
            self.model.load_state_dict(state.model)
            self.optimizer.load_state_dict(state.optimizer)
            for group in self.optimizer.param_groups:
                group["weight_decay"] = self.config.weight_decay  # the option may have changed
        if self.ranks.rank < len(state.random):
            restore_random_state(state.random[self.ranks.rank], self.device)
        else:  # a new rank, or an elastic job's commit: the ranks have changed
            seed_rank(self.config.seed, self.ranks.rank, state.step)
        if state.scaler:
            self.update.scaler.load_state_dict(state.scaler)
        if self.config.steps is None and self.config.epochs:
            self.steps = self.config.epochs * self.steps_per_epoch - self.epoch_shift
        if self.config.seconds is None or self.config.seconds == state.config.get("seconds"):
            self.steps = self.steps or state.steps

    def run(self, hooks: Sequence[Hook] = ()) -> None:
        """Train until `steps` steps are done or a hook calls `stop` or raises. Collective."""
        with ExitStack() as stack:
            for hook in hooks:
                hook.on_start(self)
                stack.callback(hook.on_end)
            batches = stack.enter_context(Prefetch(self.workload.load_batch, self._prefetch_threads()))
            self._clock = time.perf_counter()
            while not self.finished:
                self.interrupt = False
                for hook in hooks:
                    hook.before_step()
                report = self.train_step(batches.get)
                if report.epoch_loss is not None:
                    for hook in hooks:
                        hook.after_epoch(self.epochs_done, report.epoch_loss)
                for hook in hooks:
                    hook.after_step(report)

    def train_step(self, load_batch: LoadBatch) -> StepReport:
        """Run forward and backward passes of this rank's batches and one update. Collective."""
        profiling.step()
        rate = self._set_learning_rate()
        self.update.begin()
        loss, data_wait = self._accumulate_gradients(load_batch)
        updated = self.update.finish(loss, self.interrupt or self.stop_requested, self.hosts_changed)
        own_loss = loss.item()  # on a GPU: waits for the step
        seconds = self._end_step()
        return StepReport(
            number=self.step,
            seconds=seconds,
            loss=own_loss,
            epoch_loss=self._add_to_epoch(loss, updated),
            learning_rate=rate,
            data_wait_seconds=data_wait,
            update=updated,
        )

    @property
    def finished(self) -> bool:
        return self._stopped or (not self.ignores_steps and self.steps is not None and self.step >= self.steps)

    @property
    def epochs_done(self) -> int:
        return (self.step + self.epoch_shift) // self.steps_per_epoch

    @property
    def images_per_step(self) -> int:
        """Images of this rank in one step."""
        return self.config.batch_size * self.batches_per_step

    def stop(self) -> None:
        """End training after this step."""
        self._stopped = True

    def restart_clock(self) -> None:
        """Exclude the time since the end of this step from the next step's time."""
        self._clock = time.perf_counter()
        self.heartbeat += 1

    def _prefetch_threads(self) -> int:
        if self.config.workers is not None:
            return self.config.workers
        return torch.get_num_threads() if self.workload.needs_prefetch else 0

    def _set_learning_rate(self) -> float:
        # With --epochs the schedule follows the data, even if np changes the images per step.
        shift = self.epoch_shift if self.config.epochs else 0
        rate = self.schedule.at(self.step + shift, self.steps + shift if self.steps is not None else None)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _accumulate_gradients(self, load_batch: LoadBatch) -> tuple[Tensor, float]:
        """The mean loss of the step's batches, and the seconds spent waiting for data."""
        loss, data_wait = torch.zeros((), device=self.device), 0.0
        for batch in range(self.step * self.batches_per_step, (self.step + 1) * self.batches_per_step):
            wait_start = time.perf_counter()
            inputs, targets = self.workload.to_device(load_batch(batch), self.device)
            data_wait += time.perf_counter() - wait_start
            batch_loss = (
                self.compute_format.loss(self.model, inputs, targets, self.workload.loss) / self.batches_per_step
            )
            self.update.backward(batch_loss)
            loss += batch_loss.detach()
        return loss, data_wait

    def _end_step(self) -> float:
        """Count the step; returns its seconds."""
        previous, self._clock = self._clock, time.perf_counter()
        self.heartbeat += 1
        self.step += 1
        self.step_seconds.append(self._clock - previous)
        return self.step_seconds[-1]

    def _add_to_epoch(self, loss: Tensor, updated: UpdateResult) -> float | None:
        """The epoch's mean loss over all ranks if the epoch ends here, else None."""
        if not updated.skipped:
            self.epoch_loss.add(loss)
        ends = (self.step + self.epoch_shift) % self.steps_per_epoch == 0
        return self.epoch_loss.exchange(self.ranks) if ends else None


class EpochLoss:
    """The mean loss of an epoch over all ranks: summed on the device and exchanged once."""

    def __init__(self, device: torch.device) -> None:
        self.sum, self.count = torch.zeros((), dtype=torch.float64, device=device), 0

    def add(self, loss: Tensor) -> None:
        """Add a step's loss. Sends no message and does not wait for a GPU."""
        self.sum += loss.detach()
        self.count += 1

    def exchange(self, ranks: Ranks) -> float | None:
        """The mean since the last call; None if nothing was added. Collective."""
        by_rank = ranks.allgather((float(self.sum), self.count))
        self.sum.zero_()
        self.count = 0
        count = sum(count for _, count in by_rank)
        return sum(total for total, _ in by_rank) / count if count else None
