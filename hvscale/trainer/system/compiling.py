"""torch.compile, block by block."""

from torch import nn

from hvscale.core.errors import RequestError


def compile_blocks(model: nn.Module) -> None:
    """Compile in place each repeated block: what stands in a sequence and has layers of its own. State dicts keep their names.

    Raises RequestError for a model without any.
    Not the whole model, whose backward pass would give all gradients at its end, when nothing is left to hide their exchange behind.
    """
    sequences = [module for module in model.modules() if isinstance(module, nn.Sequential | nn.ModuleList)]
    blocks = [block for sequence in sequences for block in sequence if not isinstance(block, nn.Sequential)]
    blocks = [block for block in blocks if next(block.children(), None) is not None]
    if not blocks:
        raise RequestError("the model has no repeated blocks to compile: leave out --compile")
    for block in blocks:
        block.compile()
