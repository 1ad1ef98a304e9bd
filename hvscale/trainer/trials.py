"""A training that a search measures: between two steps it checks its sums, takes other settings of Horovod, or ends."""

import os
import time
import zlib

import torch
from torch import nn

from hvscale.core.errors import RequestError
from hvscale.core.trial_protocol import Command, Reply, TrialFolder
from hvscale.trainer.ranks import Ranks

# Elements of the sums that are checked: from a message that is sent at once to one of 16 MiB, which pipelines cut into parts.
SUMMED = (1, 1 << 10, 1 << 18, 1 << 22)
LOOK_SECONDS = 0.05  # between two looks for a command
PERIOD = 1000  # of the numbers that are summed: whole ones, which fp32 adds up exactly


class Trials:
    """Commands for all ranks; rank 0 alone looks for them."""

    def __init__(self, ranks: Ranks, model: nn.Module) -> None:
        self.ranks, self.model = ranks, model
        self.folder = TrialFolder.of_this_rank()
        self.done = 0
        self.noted: Command | None = None
        self.look_at = 0.0

    @property
    def active(self) -> bool:
        return self.folder is not None

    def waiting(self) -> Command | None:
        """On rank 0 the command that has not been executed, if there is one."""
        now = time.monotonic()
        if self.folder is not None and self.ranks.rank == 0 and self.noted is None and now >= self.look_at:
            self.look_at = now + LOOK_SECONDS
            command = self.folder.read_command()
            self.noted = command if command is not None and command.number > self.done else None
        return self.noted

    def execute(self, steps: int) -> bool:
        """What rank 0 was commanded after so many steps, or the end where it was not. False: training is to end. Collective."""
        command, self.noted = self.ranks.broadcast(self.noted), None
        if command is None:
            return False
        problem = wrong_sums(self.ranks, self.model) if command.action == "check" else None
        if command.action == "begin":
            self._restart(command)
        self.done = command.number
        if self.folder is not None and self.ranks.rank == 0:
            self.folder.send_reply(Reply(number=command.number, steps=steps, problem=problem))
        return command.action != "stop"

    def _restart(self, command: Command) -> None:
        """Horovod anew, under the same MPI: what it reads at hvd.init() is then in effect. The optimizer's hooks stay good."""
        hvd = self.ranks.hvd
        if hvd is None:
            return
        hvd.shutdown()
        os.environ.update(command.variables)
        hvd.init()
        if hvd.size() != self.ranks.size:
            raise RequestError(f"Horovod has {hvd.size()} ranks after another hvd.init(), and had {self.ranks.size}")


def wrong_sums(ranks: Ranks, model: nn.Module) -> str | None:
    """What is wrong with what the ranks have added up: parameters that differ between ranks, or sums whose result is known. Collective."""
    if ranks.hvd is None:
        return None
    total, device, wrong = 0, next(model.parameters()).device, []
    checksum = 0
    for parameter in model.parameters():
        total += parameter.numel()
        content = parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        checksum = zlib.crc32(content.data, checksum)
    for count in SUMMED:
        if count <= max(total, SUMMED[0]):
            numbers = (torch.arange(count, device=device) % PERIOD).float()
            found = ranks.hvd.allreduce(numbers + ranks.rank, name=f"hvscale.sum.{count}", op=ranks.hvd.Sum)
            expected = numbers * ranks.size + sum(range(ranks.size))
            if not torch.equal(found, expected):
                wrong.append(f"rank {ranks.rank}: {int((found != expected).sum())} of {count} sums are wrong")
    for of_rank in ranks.gather(wrong):
        if of_rank:
            return str(of_rank[0])
    return "the ranks' parameters differ" if len(set(ranks.gather(checksum))) > 1 else None
