"""The options of `hvscale eval` and `hvscale upscale`. Does not import torch."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hvscale.core.numbers import Factor, Gigabytes, SmallCount, SmallCountOrZero, Threads
from hvscale.trainer.config import BUNDLED


class TrainedConfig(BaseModel):
    """The trained model and how it runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    model: str | None = None
    """Set the model of the weights. [default: the model they name, or the public EDSR that has
    their shapes]
    """
    scale: Literal[2, 3, 4] | None = None
    """Set the upscaling factor, for weights that do not contain it."""
    res_scale: Factor | None = None
    """Multiply each block's residual by this, for EDSR weights that do not contain it. [default:
    the model's own]
    """
    memory_gb: Gigabytes = 2
    """Limit the memory that the model takes for one image, in GB (10^9 bytes). Larger images are
    cut into tiles, with the same result, which takes 20 bytes a pixel more, 50 with
    --self-ensemble.
    """
    self_ensemble: bool = False
    """Average over the eight flips and rotations of each image. Takes eight times as long and gains
    about 0.1 dB.
    """
    threads: Threads | None = None
    """Use this many computing threads per rank. [default: OMP_NUM_THREADS, or its share of the
    cores]
    """

    def model_options(self) -> dict[str, Any]:
        """The given keyword arguments for `hvscale.models.build`."""
        options = {"scale": self.scale, "res_scale": self.res_scale}
        return {name: value for name, value in options.items() if value is not None}


class EvalConfig(TrainedConfig):
    """The options of `hvscale eval`: each docstring is an option's help text.

    Create it with `checked`.
    """

    weights: Path
    """Evaluate this model: a run folder, a checkpoint, or a weights file (state dict)."""
    data: str = BUNDLED
    """Evaluate on "bundled" photos, DIV2K, a benchmark set (HR, LR_bicubic/X2), a folder of images,
    or folders of classes.
    """
    images: str | None = None
    """Evaluate these images, such as 801-900: file numbers of DIV2K, otherwise positions by name.
    [default: 801-810 of DIV2K, otherwise all]
    """
    measure: Literal["auto", "rgb", "luma"] = "auto"
    """Compare rgb, luma (Y), or auto: luma for benchmark sets and RGB otherwise, as publications
    do.
    """
    shave: SmallCountOrZero | None = None
    """Shave this many pixels off each side. [default: the scale for luma, scale + 6 for RGB]"""
    batch_size: SmallCount = 16
    """Set the batch size of a classifier."""
    image_size: SmallCount | None = None
    """Set the width and height of a classifier's images, in pixels. [default: the model's own]"""


class UpscaleConfig(TrainedConfig):
    """The options of `hvscale upscale`. Create it with `checked`."""

    images: list[Path]
    """Upscale these images."""
    weights: Path
    """Use this model: a run folder, a checkpoint, or a weights file (state dict)."""
    output: Path | None = None
    """Write NAMEx2.png and so on to this folder. [default: the folder of each image]"""
