"""The command on each number of ranks, for weak or strong scaling."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hvscale.core.errors import RequestError
from hvscale.core.numbers import MOST_BYTES, read_whole
from hvscale.core.run_folder import is_own_command
from hvscale.core.trainer_defaults import BATCH_SIZE

Scaling = Literal["weak", "strong"]
SHARE = re.compile(r"\{([0-9]{1,18})/np\}")
BATCH = "--batch-size"


@dataclass(frozen=True)
class Work:
    """A command, and how its work grows with np.

    Weak: each rank has the same work. Strong: all ranks together have the same work. In the
    command `{np}` is replaced by the number of ranks, and `{64/np}` by a rank's share of 64.
    """

    command: list[str]
    scaling: Scaling

    def check(self, ranks: Sequence[int]) -> str | None:
        """Check the command on each of `ranks`; return a warning, or None.

        Raises RequestError if the work cannot be divided by one of them.
        """
        if self.is_training and any(word == "--run" or word.startswith("--run=") for word in self.command):
            raise RequestError("remove --run from hvscale train: each run gets its own folder")
        if self.scaling == "weak" and self.is_divided:
            raise RequestError("the command divides its work by np, which is strong scaling: add --strong")
        for np in ranks:
            self.command_for(np)
        if self.scaling == "weak" or self.is_divided:
            return None
        if self.is_training:
            return f"{BATCH} {self.batch_size()} is divided among the ranks"
        if any("{np}" in word for word in self.command):
            return None
        return "the command contains no {np} or {64/np}: it is assumed to divide its work among the ranks itself"

    def command_for(self, np: int) -> list[str]:
        """The command on np ranks. Raises RequestError if the work cannot be divided by np."""
        words = [
            SHARE.sub(lambda found: str(share(int(found[1]), np, found[0])), word).replace("{np}", str(np))
            for word in self.command
        ]
        if self.scaling == "strong" and self.is_training and not self.is_divided:
            batch = self.batch_size()
            words += [BATCH, str(share(batch, np, f"{BATCH} {batch}"))]  # the last of two equal options counts
        return words

    @property
    def is_divided(self) -> bool:
        """Whether the command contains shares such as {64/np}."""
        return any(SHARE.search(word) for word in self.command)

    @property
    def is_training(self) -> bool:
        """Whether the command is `hvscale train`, whose batch can be divided."""
        return is_own_command(self.command, "train")

    def batch_size(self) -> int:
        """The trainer's --batch-size or its default. Raises RequestError if it is not a number."""
        given = [
            after if word == BATCH else word.partition("=")[2]
            for word, after in zip(self.command, [*self.command[1:], ""], strict=True)
            if word == BATCH or word.startswith(f"{BATCH}=")
        ]
        text = given[-1] if given else str(BATCH_SIZE)
        number = read_whole(text, 1, MOST_BYTES)
        if number is None:
            raise RequestError(f"{BATCH} {text}: not a number of images")
        return number


def share(whole: int, np: int, what: str) -> int:
    if whole % np:
        raise RequestError(f"{what} cannot be divided by np {np}: choose a number that every --np divides")
    return whole // np
