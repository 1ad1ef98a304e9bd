"""The mean loss of an epoch over all ranks, summed where it is computed and exchanged once."""

import torch
from torch import Tensor

from hvscale.trainer.ranks import Ranks


class EpochLoss:
    def __init__(self, device: torch.device) -> None:
        self.sum, self.count = torch.zeros((), dtype=torch.float64, device=device), 0

    def add(self, loss: Tensor) -> None:
        """No message, and no waiting for a GPU."""
        self.sum += loss.detach()
        self.count += 1

    def end(self, ranks: Ranks) -> float | None:
        """The mean since the last end; None where nothing was added. Collective."""
        by_rank = ranks.gather((float(self.sum), self.count))
        self.sum.zero_()
        self.count = 0
        count = sum(count for _, count in by_rank)
        return sum(total for total, _ in by_rank) / count if count else None
