"""Loads a weights file into a model; every tensor must fit."""

import io
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular


def load(model: nn.Module, file: Path, *, allow_other_tail: bool = False) -> list[str]:
    """`load_state` from a file, which may hold tensors only (`weights_only`).

    Also raises RequestError if the file cannot be read.
    """
    return load_state(model, read_state(file), str(file), allow_other_tail=allow_other_tail)


def load_state(model: nn.Module, found: dict[str, Any], file: str, *, allow_other_tail: bool = False) -> list[str]:
    """Copy a state dict into `model`, or nothing if it does not fit. `file` is its name in errors.

    With `allow_other_tail`, keys under `tail.` that do not fit are skipped, so that a checkpoint of
    one scale can initialise another. Returns the keys whose values the model kept. Raises
    RequestError if the state dict does not fit. What an extra state holds is left to its module.
    """
    own = model.state_dict()
    shared = own.keys() & found.keys()
    fitting = {key for key in shared if is_extra_state(key) or found[key].shape == own[key].shape}
    differing = sorted((own.keys() | found.keys()) - fitting)
    for key in differing:
        if not (allow_other_tail and key.startswith("tail.")):
            raise RequestError(f"{file} does not fit the model: {_difference(key, own, found)}")
    model.load_state_dict({key: found[key] if key in fitting else own[key] for key in own})
    return [key for key in differing if key in own]


def is_extra_state(key: str) -> bool:
    """Whether this entry of a state dict is what a module's `get_extra_state` returned."""
    return key.rpartition(".")[2] == "_extra_state"


def extra_state(model: nn.Module) -> dict[str, Any]:
    """The entries of the state dict that modules make by `get_extra_state`; not copies."""
    return {key: value for key, value in model.state_dict().items() if is_extra_state(key)}


def check_extra_state(model: nn.Module, name: str) -> None:
    """Raises RequestError if a file of `model`'s state dict could not be read again."""
    for key, value in extra_state(model).items():
        stream = io.BytesIO()
        try:
            torch.save(value, stream)
            stream.seek(0)
            torch.load(stream, weights_only=True)
        except Exception as error:  # whatever the pickling of the user's own objects raises
            raise RequestError(
                f"{name}: a checkpoint cannot hold what get_extra_state returned as {key}: "
                "return tensors, numbers, strings, and lists or dicts of these"
            ) from error


def read_state(file: Path) -> dict[str, Any]:
    """The state dict in a file: tensors, and any values of extra states.

    Raises RequestError if the file cannot be read, is damaged, or holds no state dict.
    """
    try:
        stream = open_regular(file)
    except OSError as error:
        raise RequestError(f"cannot read the weights {file}: {error.strerror}") from error
    with stream:
        try:
            check_sums(stream)
            content = torch.load(stream, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load has no single exception type for damaged files
            raise RequestError(f"{file} is damaged or not a weights file (a state dict saved by torch.save)") from error
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and (isinstance(value, Tensor) or is_extra_state(name)) for name, value in content.items()
    ):
        raise RequestError(f"{file} holds no state dict (tensors by name)")
    # DataParallel and DistributedDataParallel add this prefix to every name.
    return {name.removeprefix("module."): value for name, value in content.items()}


def check_sums(stream: BinaryIO) -> None:
    """Check the CRC-32 of each part of a zip archive, which is torch.save's format.

    torch.load does not check them. Raises BadZipFile if one is wrong.
    """
    if not zipfile.is_zipfile(stream):  # the format of torch.save before 1.6
        stream.seek(0)
        return
    with zipfile.ZipFile(stream) as archive:
        if damaged := archive.testzip():
            raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
    stream.seek(0)


def _difference(key: str, own: dict[str, Any], found: dict[str, Any]) -> str:
    if key not in found:
        return f"{key} is missing"
    if key not in own:
        return f"{key} is not part of the model"
    return f"{key} is {tuple(found[key].shape)} in the file and {tuple(own[key].shape)} in the model"
