"""torchvision's classification models, by the names torchvision gives them. Importing this takes seconds."""

from typing import Any

import torchvision.models
from torch import nn

from hvscale.models.preset import Preset

# Both models' own initialisation, which torchvision is about to make the default and until then warns about.
OPTIONS: dict[str, dict[str, Any]] = {"googlenet": {"init_weights": True}, "inception_v3": {"init_weights": True}}


def names() -> list[str]:
    found: list[str] = torchvision.models.list_models(module=torchvision.models)
    return found


def find(name: str) -> Preset | None:
    """With fresh weights; `side` is that of the images the published weights were measured on. None for an unknown name."""
    if name not in names():
        return None

    def build(*, num_classes: int = 1000) -> nn.Module:
        options = OPTIONS.get(name, {})
        model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=num_classes, **options)
        return model

    (side,) = torchvision.models.get_model_weights(name).DEFAULT.transforms().crop_size
    # The larger vision transformers have published weights for several sides; the model itself is made for 224.
    return Preset(build, "classification", 224 if name.startswith("vit_") else side)
