"""The configurations of `hvscale eval` and `hvscale upscale`. Does not import torch."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hvscale.core.numbers import Factor, Gigabytes, SmallCount, SmallCountOrZero, Threads
from hvscale.trainer.config import BUNDLED


class TrainedConfig(BaseModel):
    """The trained model, and how it is run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    model: str | None = None
    """Set the model of the weights; default: the one they name, or an EDSR of the public
    implementation by their shapes.
    """
    scale: Literal[2, 3, 4] | None = None
    """Set the upscaling factor, for weights that do not contain it."""
    res_scale: Factor | None = None
    """Multiply each block's residual by this, for EDSR weights that do not contain it; default: the
    model's own.
    """
    memory_gb: Gigabytes = 2
    """Limit the memory for one image to about this many GB (10^9 bytes); larger images are cut into
    tiles, with the same result.
    """
    self_ensemble: bool = False
    """Average over the eight flips and rotations of each image: eight times the time for about 0.1
    dB.
    """
    threads: Threads | None = None
    """Compute with this many threads a rank; default: OMP_NUM_THREADS, or the rank's share of the
    cores.
    """

    def model_options(self) -> dict[str, Any]:
        """The keyword arguments for `hvscale.models.build` that were given."""
        options = {"scale": self.scale, "res_scale": self.res_scale}
        return {name: value for name, value in options.items() if value is not None}


class EvalConfig(TrainedConfig):
    """Create it with `checked`. Each field is an option of `hvscale eval`; the text below a field
    is its help.
    """

    weights: Path
    """Evaluate this: the run folder of a training, a checkpoint, or a file of weights (state dict).
    """
    data: str = BUNDLED
    """Evaluate on "bundled" photos, DIV2K, a benchmark set (HR, LR_bicubic/X2), a folder of images,
    or folders of classes.
    """
    images: str | None = None
    """Evaluate these images, such as 801-900: DIV2K's numbers, elsewhere positions in name order;
    default for DIV2K: 801-810.
    """
    measure: Literal["auto", "rgb", "luma"] = "auto"
    """Compare rgb, luma (Y) only, or auto: luma for benchmark sets and RGB elsewhere, as in
    publications.
    """
    shave: SmallCountOrZero | None = None
    """Cut off this many pixels at each side; default: the scale for luma, scale + 6 for RGB, as is
    usual.
    """
    batch_size: SmallCount = 16
    """Evaluate this many images at a time with a classifier."""
    image_size: SmallCount | None = None
    """Set the width and height of a classifier's images, in pixels; default: the model's own."""


class UpscaleConfig(TrainedConfig):
    """Create it with `checked`. Each field is an option of `hvscale upscale`."""

    images: list[Path]
    """Images to upscale."""
    weights: Path
    """Use this model: the run folder of a training, a checkpoint, or a file of weights (state
    dict).
    """
    output: Path | None = None
    """Write NAMEx2.png and so on to this folder; default: the folder of each image."""
