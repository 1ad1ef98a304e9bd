"""What `hvscale eval` and `hvscale upscale` are asked to do. Needs no torch, so that a command line can explain it at once."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hvscale.core.numbers import Factor, Gigabytes, SmallCount, SmallCountOrZero, Threads
from hvscale.trainer.config import BUNDLED


class TrainedConfig(BaseModel):
    """Which trained model, and how it is run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    model: str | None = None
    """Model that the weights are of; when not given the one they say, or an EDSR of the public implementation by their shapes."""
    scale: Literal[2, 3, 4] | None = None
    """How many times larger the output is, for weights that do not say it."""
    res_scale: Factor | None = None
    """Factor on each block's residual, for an EDSR file of weights that does not say it; when not given the model's own."""
    memory_gb: Gigabytes = 2
    """About the most memory that an image takes, in 10^9 bytes; a larger one is cut into tiles, with the same result."""
    self_ensemble: bool = False
    """Average over the eight flips and turns of each image: takes eight times as long, for about 0.1 dB."""
    threads: Threads | None = None
    """Threads a rank computes with; when not given OMP_NUM_THREADS, or else the rank's share of the cores."""

    def model_options(self) -> dict[str, Any]:
        """The keyword arguments for `hvscale.models.build` that were given."""
        options = {"scale": self.scale, "res_scale": self.res_scale}
        return {name: value for name, value in options.items() if value is not None}


class EvalConfig(TrainedConfig):
    """Make one with `checked`. Each field is an option of `hvscale eval`; the text below a field is its help."""

    weights: Path
    """A training run's folder, a checkpoint, or a file of weights (state dict)."""
    data: str = BUNDLED
    """Images: "bundled", DIV2K's folder, a benchmark set's (HR, LR_bicubic/X2), any of images, or folders of classes."""
    images: str | None = None
    """Images to measure, such as 801-900: DIV2K's numbers, elsewhere places in the order of names; 801-810 of DIV2K when not given."""
    measure: Literal["auto", "rgb", "luma"] = "auto"
    """Compare RGB, or luma (Y) alone; auto: luma for benchmark sets, RGB elsewhere, as their publications do."""
    shave: SmallCountOrZero | None = None
    """Pixels left out at each side; when not given the scale for luma, and six more for RGB, as is usual."""
    batch_size: SmallCount = 16
    """A classifier's images at a time."""
    image_size: SmallCount | None = None
    """Width and height of a classifier's images, in pixels; the model's own when not given."""


class UpscaleConfig(TrainedConfig):
    """Make one with `checked`. Each field is an option of `hvscale upscale`."""

    images: list[Path]
    """Images to enlarge."""
    weights: Path
    """A training run's folder, a checkpoint, or a file of weights (state dict) of a super-resolution model."""
    output: Path | None = None
    """Folder for the pictures, NAMEx2.png and so on; when not given that of each image."""
