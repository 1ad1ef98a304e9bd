"""Load a file of weights into a model, strictly."""

from pathlib import Path

import torch
from torch import Tensor, nn

from hvscale.errors import RequestError


def load(model: nn.Module, file: Path, *, allow_other_tail: bool = False) -> list[str]:
    """Copy a state dict into `model`, all of it or nothing; the file may hold tensors only (`weights_only`).

    With `allow_other_tail` the keys under `tail.` may differ, so that a checkpoint of one scale starts another: those
    that fit are taken. Returns the keys that kept the model's own values: none when the load was strict.
    Raises RequestError when the file cannot be read, is cut short or garbage, or does not fit the model.
    """
    found = _read(file)
    own = model.state_dict()
    fitting = {key for key, value in own.items() if key in found and found[key].shape == value.shape}
    differing = sorted((own.keys() | found.keys()) - fitting)
    for key in differing:
        if not (allow_other_tail and key.startswith("tail.")):
            raise RequestError(f"{file} does not fit the model: {_difference(key, own, found)}")
    model.load_state_dict({key: found[key] if key in fitting else own[key] for key in own})
    return [key for key in differing if key in own]


def _read(file: Path) -> dict[str, Tensor]:
    try:
        stream = file.open("rb")
    except OSError as error:
        raise RequestError(f"cannot read the weights {file}: {error.strerror}") from error
    with stream:
        try:
            content = torch.load(stream, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load has no exception of its own for a file cut short or of another format
            raise RequestError(f"{file} is not a whole file of weights (state dict saved by torch.save)") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise RequestError(f"{file} holds no state dict: tensors by name were expected")
    # What DataParallel and DistributedDataParallel put in front of every name.
    return {name.removeprefix("module."): value for name, value in content.items()}


def _difference(key: str, own: dict[str, Tensor], found: dict[str, Tensor]) -> str:
    if key not in found:
        return f"it lacks {key}"
    if key not in own:
        return f"it has {key}, which the model lacks"
    return f"{key} is {tuple(found[key].shape)} in the file and {tuple(own[key].shape)} in the model"
