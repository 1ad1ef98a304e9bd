"""The error for a user's model whose output does not fit its task."""

from collections.abc import Sequence

from torch import Tensor

from hvscale.core.errors import RequestError


def wrong_output(model: str, output: object, expected: Sequence[int], use: str = "training") -> RequestError:
    """The error for a user's model whose output does not fit its task. `use`: what needs it."""
    return RequestError(
        f"{model} returned {kind_of(output)} for a batch; {use} needs a tensor of shape {tuple(expected)}"
    )


def kind_of(output: object) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    parts = f" ({', '.join(map(kind_of, output))})" if isinstance(output, tuple) else ""
    return f"a {type(output).__name__}{parts}"
