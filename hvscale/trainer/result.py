"""What training gave: result.json of the run folder."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, ValidationError

from hvscale.core.documents import from_json
from hvscale.core.errors import RequestError
from hvscale.core.files import read_bytes

FILE = "result.json"


class TrainResult(BaseModel):
    model_config = ConfigDict(populate_by_name=True, use_attribute_docstrings=True, protected_namespaces=())

    schema_: Annotated[Literal["hvscale/train/1"], Field(alias="schema")] = "hvscale/train/1"
    model: str
    model_options: dict[str, StrictInt | StrictFloat] = {}
    """What the model was built with, by name."""
    np: int
    holdout: str | None = None
    """What a super-resolution model was measured on: the name of the photo that was held out, or of the images."""
    psnr_db: float | None = None
    ssim: float | None = None
    bicubic_psnr_db: float | None = None
    top1: float | None = None
    """Share of the validation images whose class a classifier names first."""
    top5: float | None = None
    """Share of those whose class is among the first five."""
    validation_images: int | None = None
    images_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Patches trained on a second by all ranks together, the first steps left out."""
    images_per_second_by_rank: list[float]
    steps: int
    seconds: float
    """From the start of the first step to the end of the last."""
    precision: str
    memory_format: str
    threads_per_rank: int
    run: Path
    model_file: Path
    """State dict of the trained model, under the keys of the public implementation."""
    picture: Path | None = None
    """LR, bicubic, ours and HR side by side, for super-resolution."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Of a run folder. Raises RequestError when its result.json is missing, or is not a training's result."""
        path = folder / FILE
        try:
            return from_json(cls, read_bytes(path))
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            raise RequestError(f"{path} is not the result of a training: {first_problem(error)}") from error

    def summary(self) -> str:
        """Lines for a person."""
        by_rank = ", ".join(f"{images:.1f}" for images in self.images_per_second_by_rank)
        speed = f"speed: {self.images_per_second:.1f} images/s in all, by rank {by_rank}"
        if self.psnr_db is not None and self.bicubic_psnr_db is not None:
            return (
                f"PSNR on {self.holdout}: {self.psnr_db:.2f} dB, bicubic {self.bicubic_psnr_db:.2f} dB "
                f"({self.psnr_db - self.bicubic_psnr_db:+.2f} dB)\n{speed}"
            )
        if self.top1 is not None and self.top5 is not None:
            return f"top-1 {self.top1:.2%}, top-5 {self.top5:.2%} of {self.validation_images} images\n{speed}"
        return speed


def first_problem(error: ValidationError) -> str:
    """Which field is wrong and why, in a few words."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg'].lower()}" if where else first["msg"].lower()
