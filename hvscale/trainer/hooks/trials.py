"""Lets a settings search measure many trials in one running training job.

Between two steps the job checks its sums, restarts Horovod with other settings, or stops.
"""

import os
import time
import zlib

import torch
from torch import nn

from hvscale.core import exact_sums
from hvscale.core.errors import RequestError
from hvscale.core.trial_protocol import Command, Reply, TrialFolder
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.trainer import Hook, StepReport, Trainer

# Elements of the sums checked: from an eager message to one of 16 MiB, which pipelined algorithms
# split.
SUM_SIZES = (1, 1 << 10, 1 << 18, 1 << 22)
POLL_SECONDS = 0.05


class TrialHook(Hook):
    """Executes the search's commands on all ranks; only rank 0 reads them.

    The search, not `steps`, ends training.
    """

    def __init__(self, folder: TrialFolder) -> None:
        self.folder = folder
        self.last_executed = 0
        self.pending: Command | None = None
        self.next_poll = 0.0

    def on_start(self, trainer: Trainer) -> None:
        super().on_start(trainer)
        trainer.ignores_steps = True

    def before_step(self) -> None:
        self._poll()
        if self.pending is not None:
            self.trainer.interrupt = True

    def after_step(self, step: StepReport) -> None:
        if not step.update.interrupt:
            return
        if self.execute(step.number):
            self.trainer.restart_clock()
        else:
            self.trainer.stop()

    def _poll(self) -> None:
        now = time.monotonic()
        if self.trainer.ranks.rank == 0 and self.pending is None and now >= self.next_poll:
            self.next_poll = now + POLL_SECONDS
            command = self.folder.read_command()
            self.pending = command if command is not None and command.number > self.last_executed else None

    def execute(self, steps: int) -> bool:
        """Execute rank 0's command after `steps` steps; returns whether training continues.

        Collective.
        """
        ranks = self.trainer.ranks
        command, self.pending = ranks.broadcast(self.pending), None
        if command is None:  # a signal asked the job to stop
            return False
        problem = wrong_sums(ranks, self.trainer.model) if command.action == "check" else None
        if command.action == "begin":
            restart_horovod(ranks, command.variables)
        self.last_executed = command.number
        if ranks.rank == 0:
            self.folder.send_reply(Reply(number=command.number, steps=steps, problem=problem))
        return command.action != "stop"


def restart_horovod(ranks: Ranks, variables: dict[str, str]) -> None:
    """Initialise Horovod again within the same MPI, so that it reads `variables`.

    The optimizer's hooks remain valid.
    """
    hvd = ranks.hvd
    if hvd is None:
        return
    hvd.shutdown()
    os.environ.update(variables)
    hvd.init()
    if hvd.size() != ranks.size:
        raise RequestError(f"Horovod has {hvd.size()} ranks after it was initialised again, and had {ranks.size}")


def wrong_sums(ranks: Ranks, model: nn.Module) -> str | None:
    """What is wrong with the ranks' sums, or None. Collective.

    Checks that parameters are equal on all ranks, and that all-reduces give known results.
    """
    if ranks.hvd is None:
        return None
    total, device, wrong = 0, next(model.parameters()).device, []
    checksum = 0
    for parameter in model.parameters():
        total += parameter.numel()
        content = parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        checksum = zlib.crc32(content.data, checksum)
    for count in SUM_SIZES:
        if count <= max(total, SUM_SIZES[0]):
            numbers = (torch.arange(count, device=device) % exact_sums.period(ranks.size)).float()
            own = numbers + exact_sums.offset(ranks.rank)
            found = ranks.hvd.allreduce(own, name=f"hvscale.sum.{count}", op=ranks.hvd.Sum)
            expected = numbers * ranks.size + exact_sums.sum_of_offsets(ranks.size)
            if not torch.equal(found, expected):
                wrong.append(f"rank {ranks.rank}: {int((found != expected).sum())} of {count} sums are wrong")
    for of_rank in ranks.allgather(wrong):
        if of_rank:
            return str(of_rank[0])
    return "the ranks' parameters differ" if len(set(ranks.allgather(checksum))) > 1 else None
