"""Switches a model to evaluation for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Context: all layers are in evaluation mode; afterwards each is again in its own mode."""
    training = [layer for layer in model.modules() if layer.training]
    model.eval()
    try:
        yield
    finally:
        for layer in training:
            layer.training = True
