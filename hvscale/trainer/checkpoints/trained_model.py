"""Loads a trained model from a run folder, a checkpoint or a file of weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.models.presets.edsr import infer_edsr_options
from hvscale.trainer.checkpoints import store
from hvscale.trainer.result import TrainResult

EDSR_NAMES = {"edsr", "edsr-baseline"}  # they differ in their defaults only
PUBLIC_FULL_FEATURES = 256  # the width that the public implementation trains with residuals scaled by 0.1


@dataclass(frozen=True)
class TrainedModel:
    name: str
    """As `hvscale.models.find` knows it."""
    options: dict[str, Any]
    """Keyword arguments that it was built with."""
    module: nn.Module
    """In evaluation mode."""


def load_trained_model(weights: Path, name: str | None, options: dict[str, Any]) -> TrainedModel:
    """The model that `weights` describes; `name` and `options` take precedence.

    A plain file of weights is described by its shapes only, which identify an EDSR of the public
    implementation. Raises RequestError if the file cannot be read, is damaged, does not fit, or the
    model is unknown.
    """
    described, state = read_weights(weights)
    shape = infer_edsr_options(state)
    if described is None and shape is not None:
        described = ("edsr" if shape["n_feats"] >= PUBLIC_FULL_FEATURES else "edsr-baseline", dict(shape))
    chosen = name or (described and described[0])
    if chosen is None:
        raise RequestError(f"{weights} does not contain the model's name: add --model")
    options = {**known_options(chosen, described, shape), **options}
    if models.find(chosen).task == "super-resolution" and "scale" not in options:
        raise RequestError(f"{weights} does not contain the scale: add --scale")
    try:
        model = models.build(chosen, **options)
    except (TypeError, ValueError) as error:
        raise RequestError(f"{weights}: {chosen} cannot be built with {options}: {error}") from error
    models.load_state(model, state, str(weights))
    return TrainedModel(chosen, options, model.eval())


def known_options(
    name: str, described: tuple[str, dict[str, Any]] | None, shape: dict[str, int] | None
) -> dict[str, Any]:
    """Options of model `name` from the description; the shapes of the weights take precedence."""
    same = described is not None and (name == described[0] or {name, described[0]} == EDSR_NAMES)
    known = described[1] if described is not None and same else {}
    return {**known, **shape} if shape is not None and name in EDSR_NAMES else known


def read_weights(weights: Path) -> tuple[tuple[str, dict[str, Any]] | None, dict[str, Tensor]]:
    """Name and options, if a checkpoint or a result.json beside the weights gives them; and the
    state dict.
    """
    if weights.is_dir():
        if (weights / "model.pt").is_file():
            return read_weights(weights / "model.pt")
        newest = store.CheckpointFolder(weights / store.FOLDER, keep=1).files()
        if not newest:
            raise RequestError(f"{weights} holds no model.pt and no checkpoints: name the folder of a training run")
        return read_weights(newest[0])
    if store.NAME.fullmatch(weights.name):
        try:
            found = store.read(weights)
        except store.DamagedError as damage:
            raise RequestError(f"checkpoint {weights} is damaged ({damage}): use the previous one") from damage
        return (found.config["model"], found.model_options), found.model
    state = models.read_state(weights)
    try:
        result = TrainResult.read(weights.parent)
    except RequestError:
        return None, state
    return (result.model, result.model_options), state
