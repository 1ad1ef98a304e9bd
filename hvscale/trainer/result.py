"""The result of a training run, stored as result.json."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, StrictFloat, StrictInt, ValidationError

from hvscale.core.documents import VersionedDocument, from_json
from hvscale.core.errors import RequestError
from hvscale.core.files import read_bytes

FILE = "result.json"


class TrainResult(VersionedDocument):
    """The result of a training run."""

    model_config = ConfigDict(use_attribute_docstrings=True, protected_namespaces=())

    schema_: Literal["hvscale/train/1"] = "hvscale/train/1"
    model: str
    model_options: dict[str, StrictInt | StrictFloat] = {}
    """Keyword arguments the model was built with."""
    np: int
    holdout: str | None = None
    """The held-out photo, or the name of the images, that PSNR and SSIM are for."""
    psnr_db: float | None = None
    ssim: float | None = None
    bicubic_psnr_db: float | None = None
    top1: float | None = None
    """Top-1 accuracy on the validation images, from 0 to 1."""
    top5: float | None = None
    """Top-5 accuracy, from 0 to 1."""
    validation_images: int | None = None
    images_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Training throughput of all ranks together, without the warm-up steps."""
    images_per_second_by_rank: list[float]
    steps: int
    seconds: float
    """From the start of the first step to the end of the last."""
    precision: str
    memory_format: str
    threads_per_rank: int
    run: Path
    model_file: Path
    """State dict of the trained model; EDSR's has the keys of the public implementation."""
    picture: Path | None = None
    """LR, bicubic, model output and HR side by side (super-resolution)."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read result.json of a run folder. Raises RequestError if it is missing or invalid."""
        path = folder / FILE
        try:
            return from_json(cls, read_bytes(path))
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            raise RequestError(f"{path} is not a valid training result: {first_problem(error)}") from error

    def summary(self) -> str:
        """The result in one or two lines for the user."""
        by_rank = ", ".join(f"{images:.1f}" for images in self.images_per_second_by_rank)
        speed = f"speed: {self.images_per_second:.1f} images/s in total, by rank {by_rank}"
        if not self.images_per_second:
            speed = f"speed: not measured: the checkpoint is of step {self.steps}, and no step was left to train"
        if self.psnr_db is not None and self.bicubic_psnr_db is not None:
            return (
                f"PSNR on {self.holdout}: {self.psnr_db:.2f} dB, bicubic {self.bicubic_psnr_db:.2f} dB "
                f"({self.psnr_db - self.bicubic_psnr_db:+.2f} dB)\n{speed}"
            )
        if self.top1 is not None and self.top5 is not None:
            return f"top-1 {self.top1:.2%}, top-5 {self.top5:.2%} of {self.validation_images} images\n{speed}"
        return speed


def first_problem(error: ValidationError) -> str:
    """The first invalid field and the reason."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg'].lower()}" if where else first["msg"].lower()
