"""Loads a trained model from a run folder, a checkpoint or a weights file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.core.files import is_folder
from hvscale.models.presets.edsr import infer_edsr_options
from hvscale.trainer.checkpoints import store
from hvscale.trainer.progress import warn
from hvscale.trainer.ranks import started_as_rank_zero
from hvscale.trainer.result import TrainResult

EDSR_NAMES = {"edsr", "edsr-baseline"}  # they differ only in their defaults
PUBLIC_FULL_FEATURES = 256  # at this width the public code scales residuals by 0.1


@dataclass(frozen=True)
class TrainedModel:
    name: str
    """A name for `hvscale.models.find`."""
    options: dict[str, Any]
    """Keyword arguments the model was built with."""
    module: nn.Module
    """In evaluation mode."""


def load_trained_model(weights: Path, name: str | None, options: dict[str, Any]) -> TrainedModel:
    """The trained model in `weights`; `name` and `options` take precedence over its description.

    A plain weights file is described only by its shapes, which identify an EDSR of the public
    implementation. Raises RequestError if the file cannot be read, is damaged or does not fit, or
    if the model is unknown.
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
    """The options of model `name` that are known; the weights' shapes take precedence."""
    same = described is not None and (name == described[0] or {name, described[0]} == EDSR_NAMES)
    known = described[1] if described is not None and same else {}
    return {**known, **shape} if shape is not None and name in EDSR_NAMES else known


def weights_in(folder: Path) -> Path:
    """The final weights in a run folder, or its newest checkpoint, whichever is of more steps.

    A training that was resumed and did not end leaves the earlier weights behind.
    """
    final = folder / "model.pt"
    try:
        has_final = final.is_file()
        newest = next(iter(store.CheckpointFolder(folder / store.FOLDER, keep=1).files()), None)
    except OSError as error:
        raise RequestError(f"{folder} cannot be read: {error.strerror}") from error
    if not has_final:
        if newest is None:
            raise RequestError(f"{folder} holds no model.pt and no checkpoints: name the folder of a training run")
        return newest
    ended_after = steps_of_result(folder)
    if newest is not None and ended_after is not None and store.step_of(newest) > ended_after:
        if started_as_rank_zero():
            warn(f"{final} is of step {ended_after}: using the later checkpoint {newest.name}")
        return newest
    return final


def steps_of_result(folder: Path) -> int | None:
    """The number of steps after which training ended; None if that is not known."""
    try:
        return TrainResult.read(folder).steps
    except RequestError:
        return None


def read_weights(weights: Path) -> tuple[tuple[str, dict[str, Any]] | None, dict[str, Any]]:
    """The model's name and options, and the state dict.

    Name and options come from a checkpoint or a result.json beside the weights; otherwise None.
    """
    if is_folder(weights):
        return read_weights(weights_in(weights))
    if store.is_checkpoint(weights):
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
