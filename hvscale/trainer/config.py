"""The configuration of a training run. Does not import torch, so that the command line starts
quickly.
"""

import itertools
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hvscale.core.errors import RequestError
from hvscale.core.numbers import (
    Count,
    CountOrZero,
    Factor,
    FactorOrZero,
    GigabytesOrZero,
    Seconds,
    SecondsOrZero,
    Seed,
    SmallCount,
    Threads,
    ThreadsOrZero,
)
from hvscale.core.trainer_defaults import BATCH_SIZE

Precision = Literal["auto", "fp32", "bf16", "fp16"]
MemoryFormat = Literal["auto", "channels-last", "contiguous"]
Schedule = Literal["constant", "cosine"]
OptimizerName = Literal["auto", "adam", "sgd"]
WandbMode = Literal["off", "offline", "online"]
BUNDLED = "bundled"
SYNTHETIC = "synthetic"
PUBLIC_EPOCH_STEPS = 1000  # EDSR's public implementation (Lim et al. 2017) counts 1000 batches as an epoch


Config = TypeVar("Config", bound=BaseModel)


def checked(kind: type[Config], /, **options: Any) -> Config:
    """Raises RequestError, in one line that names the option, for an invalid value."""
    try:
        return kind(**options)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        raise RequestError(f"{flag(str(error['loc'][0]))} {error['input']}: {error['msg'].lower()}") from invalid


class TrainConfig(BaseModel):
    """Create it with `TrainConfig.of`. Each field is an option of `hvscale train`; the text below
    it is its help.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    model: str = "edsr-baseline"
    """Train this model: one of `hvscale models`, a torchvision classifier, or
    package.module:function.
    """

    scale: Literal[2, 3, 4] = 2
    """Upscale by this factor: 2, 3 or 4."""
    n_resblocks: SmallCount | None = None
    """Set the number of residual blocks; default: the model's own."""
    n_feats: SmallCount | None = None
    """Set the feature maps of each convolution; default: the model's own."""
    res_scale: Factor | None = None
    """Multiply each block's residual by this; default: the model's own."""

    data: str = BUNDLED
    """Train on these images: "bundled" (photos from the scikit-image and scikit-learn wheels),
    "synthetic", or a folder. For super-resolution DIV2K, a benchmark set (HR, LR_bicubic/X2) or any
    folder of images, from which low resolution is made; for a classifier folders of classes, or
    train and val with these.
    """
    train_images: str | None = None
    """Train on these images, such as 1-800: DIV2K's numbers, elsewhere positions in name order."""
    val_images: str | None = None
    """Validate on these images, such as 801-810, numbered likewise."""
    val_data: str | None = None
    """Validate on this folder, such as a benchmark set; all of --data is then used for training."""
    holdout: str | None = None
    """Keep this photo out of training and evaluate on it: a file name without suffix; default: the
    last by name.
    """
    cache_gb: GigabytesOrZero = 32
    """Limit the disk cache of decoded images to this many GB (10^9 bytes); further images are
    decoded at each use. 0: no cache.
    """
    cache_dir: Path | None = None
    """Keep decoded images in this folder, shared by the ranks of a node; default: $HVSCALE_DECODED,
    or hvscale/decoded in the user's cache folder.
    """
    workers: ThreadsOrZero | None = None
    """Prepare batches ahead with this many threads a rank; default: 0 if images are in memory or
    mapped, else the number of computing threads.
    """

    batch_size: SmallCount = BATCH_SIZE
    """Set the images (or patches) in a batch of one rank; a step has --batches-per-allreduce
    batches.
    """
    patch_size: SmallCount = 48
    """Set the width and height of low-resolution patches, in pixels."""
    image_size: SmallCount | None = None
    """Set the width and height of a classifier's images, in pixels; default: the model's own."""
    num_classes: SmallCount | None = None
    """Set the number of classes of synthetic data; default: 1000. Other data defines its own."""
    weights: Path | None = None
    """Start from this state dict; from another scale's EDSR, all layers but the tail are used."""

    optimizer: OptimizerName = "auto"
    """Choose adam, sgd (momentum 0.9), or auto: the task's usual one, Adam for super-resolution and
    SGD for classification.
    """
    learning_rate: Factor | None = None
    """Set the peak learning rate; default: 1e-4 for super-resolution, 0.0125 for classification.
    Scaled by ranks only with --scale-learning-rate.
    """
    weight_decay: FactorOrZero = 0
    """Set the factor of the penalty on squared weights; 5e-5 is usual for classification."""
    schedule: Schedule = "constant"
    """Keep the learning rate constant, or lower it to zero along a cosine."""
    warmup_steps: CountOrZero = 0
    """Raise the learning rate linearly over this many steps: from zero, or with
    --scale-learning-rate from that of one rank.
    """
    warmup_epochs: FactorOrZero = 0
    """Set the warm-up in epochs instead; 5 are usual for a scaled learning rate."""
    scale_learning_rate: bool = False
    """Multiply the learning rate by the batches of a step: ranks times --batches-per-allreduce
    (Goyal et al., 2017). With Adasum, only ranks of one node count if NCCL adds their gradients,
    otherwise none.
    """

    batches_per_allreduce: SmallCount = 1
    """Accumulate gradients over this many batches before they are exchanged: a larger global batch
    with fewer messages.
    """
    fp16_allreduce: bool = False
    """Exchange gradients as fp16: half the bytes; values below 6e-8 are lost."""
    bf16_allreduce: bool = False
    """Exchange gradients as bf16 and add them in fp32: half the bytes, the range of fp32, 8
    significant bits. Horovod 0.28 cannot add bf16, so each all-reduce is an all-to-all and an
    all-gather.
    """
    use_adasum: bool = False
    """Combine the ranks' updates by Adasum instead of averaging gradients: orthogonal updates are
    added, parallel ones averaged. Needs 2, 4, 8 ... ranks.
    """
    gradient_predivide_factor: Factor = 1
    """Divide gradients by this before they are added, and by ranks divided by this afterwards:
    keeps fp16 sums in range.
    """
    allreduce_groups: SmallCount | None = None
    """Exchange gradients in this many fixed groups, each when complete, instead of whatever is
    ready at the end of each cycle.
    """
    clip_norm: Factor | None = None
    """Scale the averaged gradients down to this Euclidean norm if theirs is larger."""
    sync_batch_norm: bool = False
    """Compute batch normalisation over the batches of all ranks, for small batches. Adds one
    message forward and one backward for each layer.
    """

    steps: Count | None = None
    """Train this many steps; default: 1000 unless --epochs or --seconds is given."""
    epochs: Count | None = None
    """Train this many epochs: of 1000 steps for super-resolution, of all images for a classifier.
    """
    seconds: Seconds | None = None
    """Train for about this many seconds: the first steps are timed, then all ranks agree on a
    number of steps.
    """

    seed: Seed = 1
    """Seed the initial weights and the order of crops and images."""
    precision: Precision = "auto"
    """Compute in fp32, bf16 autocast, fp16 autocast with a loss scaler, or auto: the faster of fp32
    and bf16, measured at the start.
    """
    memory_format: MemoryFormat = "auto"
    """Store images channels-last, contiguous, or auto: the faster one, measured at the start."""
    compile: bool = False
    """Compile each block of the model with torch.compile; takes about a minute at the start and
    needs a C++ compiler.
    """
    threads: Threads | None = None
    """Compute with this many threads a rank; default: OMP_NUM_THREADS, or the rank's share of the
    cores.
    """
    pin: bool = False
    """Bind each rank's threads to their own cores, if there are enough for the ranks of a host."""

    checkpoint_every: CountOrZero = 0
    """Save a checkpoint every this many steps and at the end, to resume from. 0: none."""
    checkpoint_keep: SmallCount = 3
    """Keep this many checkpoints, the newest."""
    checkpoint_dir: Path | None = None
    """Save checkpoints in this folder; default: checkpoints/ in the run folder."""
    commit_every: Count = 10
    """Commit every this many steps in an elastic job: training continues from these in-memory
    copies when a rank is lost. Added or removed hosts lose no step.
    """
    stall_timeout: SecondsOrZero = 300
    """End the job if no step finishes for this many seconds; each rank first writes its Python
    stacks to its log. 0: never.
    """
    resume: str | None = None
    """Resume from a checkpoint: a file, a folder of them, a run folder, or "auto": the newest of
    --run or --checkpoint-dir, if there is one.
    """

    wandb: WandbMode = "off"
    """Log to Weights & Biases: offline (into the run folder) or online. Failures to log never end
    training. Example: --wandb offline
    """
    wandb_project: str | None = None
    """Log to this project; default: $WANDB_PROJECT, or hvscale."""
    tensorboard: bool = False
    """Write TensorBoard event files to tensorboard/ in the run folder."""
    one_rank_run: Path | None = None
    """Compare with this run folder of the same training on one rank: --wandb and --tensorboard then
    show scaling efficiency.
    """

    run: Path | None = None
    """Write to this run folder; default: $HVSCALE_RUN, or a new folder under runs/."""

    @classmethod
    def of(cls, **options: Any) -> "TrainConfig":
        """Raises RequestError, in one line that names the option, for an invalid value."""
        config = checked(cls, **options)
        lengths = [flag(name) for name in ("steps", "epochs", "seconds") if getattr(config, name) is not None]
        if len(lengths) > 1:
            raise RequestError(f"{' and '.join(lengths)} exclude each other: choose one")
        if config.warmup_steps and config.warmup_epochs:
            raise RequestError("--warmup-steps and --warmup-epochs exclude each other: choose one")
        config._check_exchange()
        if not lengths:
            return config.model_copy(update={"steps": PUBLIC_EPOCH_STEPS})
        return config

    def _check_exchange(self) -> None:
        """Raises RequestError if options of the gradient exchange exclude each other."""
        if self.use_adasum:
            for name in self._changed("gradient_predivide_factor", "allreduce_groups", "clip_norm"):
                raise RequestError(f"--use-adasum exchanges updates, not gradients: leave out {flag(name)}")
        if self.allreduce_groups and self.gradient_predivide_factor != 1:
            raise RequestError(
                "--allreduce-groups and --gradient-predivide-factor exclude each other in Horovod: leave out one"
            )
        if self.bf16_allreduce:
            for name in self._changed("fp16_allreduce", "use_adasum", "gradient_predivide_factor", "allreduce_groups"):
                raise RequestError(f"--bf16-allreduce and {flag(name)} exclude each other: leave out one")

    def _changed(self, *names: str) -> list[str]:
        """Those of the fields that are not at their defaults."""
        return [name for name in names if getattr(self, name) != type(self).model_fields[name].default]

    def edsr_options(self) -> dict[str, Any]:
        """The keyword arguments for `hvscale.models.build` of an EDSR that were given."""
        options = {"n_resblocks": self.n_resblocks, "n_feats": self.n_feats, "res_scale": self.res_scale}
        return {name: value for name, value in options.items() if value is not None}

    def arguments(self) -> list[str]:
        """The command line after `hvscale train`: MODEL and each option that is not at its
        default.
        """
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"model"})
        words = ([flag(name)] if value is True else [flag(name), str(value)] for name, value in given.items())
        return [self.model, *itertools.chain.from_iterable(words)]


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")
