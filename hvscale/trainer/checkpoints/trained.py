"""A trained model from what people have of it: a run's folder, a checkpoint, or a file of weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.models.edsr import shape_of
from hvscale.trainer.checkpoints import store
from hvscale.trainer.result import TrainResult

EDSR_NAMES = {"edsr", "edsr-baseline"}  # which differ in their defaults only
PUBLIC_FULL_FEATURES = 256  # the width that the public implementation trains with residuals scaled by 0.1


@dataclass(frozen=True)
class Trained:
    name: str
    """As `hvscale.models.find` knows it."""
    options: dict[str, Any]
    """What it was built with."""
    module: nn.Module
    """In evaluation mode."""


def open_trained(weights: Path, name: str | None, asked: dict[str, Any]) -> Trained:
    """The model that `weights` says it is; `name` and what is in `asked` go before what it says.

    A file of weights alone says nothing but by its shapes: an EDSR of the public implementation is known by them.
    Raises RequestError when the file cannot be read, is damaged, does not fit, or the model cannot be told.
    """
    told, state = described(weights)
    shape = shape_of(state)
    if told is None and shape is not None:
        told = ("edsr" if shape["n_feats"] >= PUBLIC_FULL_FEATURES else "edsr-baseline", dict(shape))
    chosen = name or (told and told[0])
    if chosen is None:
        raise RequestError(f"{weights} does not say which model it is of: name it with --model")
    known = told[1] if told is not None and (chosen == told[0] or {chosen, told[0]} == EDSR_NAMES) else {}
    if shape is not None and chosen in EDSR_NAMES:
        known = {**known, **shape}  # the weights themselves know best
    options = {**known, **asked}
    if models.find(chosen).task == "super-resolution" and "scale" not in options:
        raise RequestError(f"{weights} does not say which scale it is of: give --scale")
    try:
        model = models.build(chosen, **options)
    except (TypeError, ValueError) as error:
        raise RequestError(f"{weights}: no {chosen} can be built with {options}: {error}") from error
    models.load_state(model, state, str(weights))
    return Trained(chosen, options, model.eval())


def described(weights: Path) -> tuple[tuple[str, dict[str, Any]] | None, dict[str, Tensor]]:
    """Name and options where they are told, by a checkpoint or by the result.json beside the weights; and the state dict."""
    if weights.is_dir():
        if (weights / "model.pt").is_file():
            return described(weights / "model.pt")
        newest = store.Folder(weights / store.FOLDER, keep=1).files()
        if not newest:
            raise RequestError(f"{weights} holds no model.pt and no checkpoints: give the folder of a training run")
        return described(newest[0])
    if store.NAME.fullmatch(weights.name):
        try:
            found = store.read(weights)
        except store.DamagedError as damage:
            raise RequestError(f"the checkpoint {weights} is damaged ({damage}): give the one before it") from damage
        return (found.config["model"], found.model_options), found.model
    state = models.read_state(weights)
    try:
        result = TrainResult.read(weights.parent)
    except RequestError:
        return None, state
    return (result.model, result.model_options), state
