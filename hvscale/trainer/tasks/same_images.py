"""Checks that all ranks of a job have the same images."""

import hashlib
from collections.abc import Sequence

from hvscale.core.errors import RequestError
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks


def named_data(config: TrainConfig) -> str:
    """The options that name the images, for an error."""
    return f"--data {config.data}" + (f" with --val-data {config.val_data}" if config.val_data else "")


def require_same_images(ranks: Ranks, given: str, images: Sequence[object]) -> None:
    """Raises RequestError, on all ranks, if a rank has other images than rank 0. Collective.

    All ranks divide one list among them: with different lists, some images would be used twice and
    others never, and epochs would end at different steps. `images`: what identifies each image, in
    order, wherever its folder is. `given` names them in the error.
    """
    own = len(images), hashlib.sha256(repr(images).encode()).hexdigest()
    everyone = ranks.allgather(own)
    errors = [
        None if found == everyone[0] else other_images(given, rank, everyone) for rank, found in enumerate(everyone)
    ]
    if any(errors):
        ranks.handle_errors(errors)


def other_images(given: str, rank: int, everyone: list[tuple[int, str]]) -> RequestError:
    """The error about a rank with other images than rank 0. `everyone`: their number and digest."""
    (first, _), (count, _) = everyone[0], everyone[rank]
    how = f"{count} images on rank {rank} and {first} on rank 0"
    if count == first:
        how = f"images of other names or sizes on rank {rank} than on rank 0"
    return RequestError(f"{given} has {how}: give all ranks the same images")
