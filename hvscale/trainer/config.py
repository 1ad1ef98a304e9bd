"""What a training run is asked to do. Needs no torch, so that a command line can read and explain it at once."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from hvscale.errors import RequestError

Precision = Literal["auto", "fp32", "bf16"]
MemoryFormat = Literal["auto", "channels-last", "contiguous"]
Schedule = Literal["constant", "cosine"]
BUNDLED = "bundled"
PUBLIC_EPOCH_STEPS = 1000  # EDSR's public implementation (Lim et al. 2017) counts 1000 batches as an epoch


class TrainConfig(BaseModel):
    """Make one with `TrainConfig.of`. Each field is an option of `hvscale train`; the text below a field is its help."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    model: str = "edsr-baseline"
    """Model to train, one of those that hvscale.models knows."""

    scale: Literal[2, 3, 4] = 2
    """How many times the output is wider and higher than the input."""
    n_resblocks: PositiveInt | None = None
    """Residual blocks; the model's own number when not given."""
    n_feats: PositiveInt | None = None
    """Feature maps of each convolution; the model's own number when not given."""
    res_scale: PositiveFloat | None = None
    """Factor on each block's residual; the model's own when not given."""

    photos: str = BUNDLED
    """Folder of photos, or "bundled": those that lie in the scikit-image and scikit-learn wheels."""
    holdout: str | None = None
    """Photo kept out of training and measured, by file name without suffix; when not given, the last by name."""

    batch_size: PositiveInt = 16
    """Patches in a batch of one rank."""
    patch_size: PositiveInt = 48
    """Width and height of a low-resolution patch, in pixels."""

    learning_rate: PositiveFloat = 1e-4
    """Adam's, at its highest. It is not multiplied by the number of ranks."""
    schedule: Schedule = "constant"
    """Learning rate over the steps: constant, or falling to zero as a cosine."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises linearly at the start."""

    steps: PositiveInt | None = None
    """Steps to train, exactly; 1000 when neither this nor --seconds is given, an epoch of the public implementation."""
    seconds: PositiveFloat | None = None
    """About how long to train: the first steps are timed, then all ranks agree on a number of steps."""

    seed: int = Field(default=1, ge=0)
    """Of the initial weights and of the crops."""
    precision: Precision = "auto"
    """Arithmetic: fp32, bf16 autocast, or whichever is measured to be faster at the start."""
    memory_format: MemoryFormat = "auto"
    """Order of images in memory: channels-last, contiguous, or whichever is measured to be faster at the start."""
    threads: PositiveInt | None = None
    """Threads a rank computes with; when not given OMP_NUM_THREADS, or else the rank's share of the cores."""

    run: Path | None = None
    """Run folder; when not given $HVSCALE_RUN, or else a new one under runs/."""

    @classmethod
    def of(cls, **options: Any) -> "TrainConfig":
        """Raises RequestError, in one line that names the option, when a value is not possible."""
        try:
            config = cls(**options)
        except ValidationError as invalid:
            error = invalid.errors()[0]
            raise RequestError(f"{flag(str(error['loc'][0]))} {error['input']}: {error['msg'].lower()}") from invalid
        if config.steps is not None and config.seconds is not None:
            raise RequestError("--steps and --seconds both say how long to train: give one of them")
        if config.steps is None and config.seconds is None:
            return config.model_copy(update={"steps": PUBLIC_EPOCH_STEPS})
        return config

    def model_options(self) -> dict[str, Any]:
        """The keyword arguments for `hvscale.models.build`: those that were given."""
        options = {
            "scale": self.scale,
            "n_resblocks": self.n_resblocks,
            "n_feats": self.n_feats,
            "res_scale": self.res_scale,
        }
        return {name: value for name, value in options.items() if value is not None}

    def arguments(self) -> list[str]:
        """The words behind `hvscale train` that say the same: MODEL and each option that is not at its default."""
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"model"})
        return [self.model, *(word for name, value in given.items() for word in (flag(name), str(value)))]


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")
