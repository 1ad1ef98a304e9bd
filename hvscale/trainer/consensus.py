"""What one rank knows and all have to act on: that it was asked to stop, that its loss is no number, in an elastic job that
hosts have come or gone. Sent along with the gradients."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Agreed:
    stop: bool
    """A rank was asked to stop."""
    finite: bool
    """The loss is finite on all ranks."""
    regroup: bool
    """Hosts have come or gone."""


class Agreement:
    """Two numbers a step, in an elastic job three, reduced as the gradients are and at their end: Horovod puts them into the same message."""

    def __init__(self, hvd: ModuleType | None, dtype: torch.dtype, predivide_factor: float) -> None:
        """`dtype` and `predivide_factor`: those of the gradients on their way."""
        self.hvd, self.dtype = hvd, dtype
        self.factors = {"prescale_factor": 1 / predivide_factor, "postscale_factor": predivide_factor}
        self.said: Any = None

    def say(self, stop: bool, loss: Tensor, regroup: bool | None = None) -> None:
        """To be called on every rank when the backward pass has ended; `regroup` is None where the job is not elastic."""
        asked = torch.tensor([float(word) for word in (stop, regroup) if word is not None], device=loss.device)
        words = torch.cat([(~loss.detach().isfinite()).float().view(1), asked]).to(self.dtype)
        if self.hvd is None:
            self.said = words
        else:
            self.said = self.hvd.allreduce_async_(words, name="hvscale.agreement", op=self.hvd.Average, **self.factors)

    def hear(self) -> Agreed:
        """What all ranks said together: the same on each."""
        words = self.said if self.hvd is None else self.hvd.synchronize(self.said)
        unfinite, stop, *regroup = words.tolist()
        return Agreed(stop > 0, not unfinite, any(regroup))
