"""The random numbers of a rank: dropout draws from them. Crops and the order of images need no state."""

from typing import Any

import torch

RANK_STRIDE = 1_000_003  # keeps the seeds of one run's ranks apart from those of a run with the next seed


def seed_rank(seed: int, rank: int, step: int = 0) -> None:
    """To be called when the model is built: from then on the ranks draw different numbers, and others after another step."""
    torch.manual_seed(seed + RANK_STRIDE * (rank + RANK_STRIDE * step))


def random_state(device: torch.device) -> dict[str, Any]:
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
