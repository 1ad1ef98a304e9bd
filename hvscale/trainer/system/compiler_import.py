"""Keeps torch from importing torch.compile where nothing is compiled: 1.5 s of a core."""

from collections.abc import Callable
from typing import Any


def keep_uncompiled(marked: Callable[..., Any]) -> None:
    """Let a function that torch marks with `_disable_dynamo` run without the compiler's import.

    At its first call such a function imports the compiler to make a version of itself that is never
    compiled, and keeps it as `__dynamo_disable`. Without a compiler that is the function itself.
    Does nothing to other functions.
    """
    original = getattr(marked, "__wrapped__", None)
    if original is not None:
        vars(original).setdefault("__dynamo_disable", original)
