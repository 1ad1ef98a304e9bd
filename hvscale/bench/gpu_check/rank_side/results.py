"""Where a rank writes its result for the controller, and which device it uses."""

import json
import os
from pathlib import Path
from typing import Any

from hvscale.core.run_folder import write_text
from hvscale.launch import flavours


def place() -> tuple[int, int]:
    """The number of ranks and this rank; (1, 0) for a single process."""
    found = flavours.launched_place()
    return (found[0], found[1]) if found is not None else (1, 0)


def write_result(rank: int, result: dict[str, Any]) -> None:
    """Write check-rank-N.json into the run folder."""
    write_text(Path(os.environ["HVSCALE_RUN"]) / f"check-rank-{rank}.json", json.dumps(result) + "\n")


def own_device(kind: str, local_rank: int) -> Any:
    """This rank's torch.device, which is made current: the GPUs go round the local ranks."""
    import torch

    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def synchronize(device: Any) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
