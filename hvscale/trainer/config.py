"""The configuration of a training run. Does not import torch, so the command line starts fast."""

import itertools
from collections.abc import Sequence
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
LearningRateSchedule = Literal["constant", "cosine"]
OptimizerName = Literal["auto", "adam", "sgd"]
WandbMode = Literal["off", "offline", "online"]
BUNDLED = "bundled"
SYNTHETIC = "synthetic"
PUBLIC_EPOCH_BATCHES = 1000  # EDSR's public implementation (Lim et al. 2017) counts 1000 batches as an epoch


Config = TypeVar("Config", bound=BaseModel)


def checked(kind: type[Config], /, **options: Any) -> Config:
    """A `kind` with these options. Raises RequestError, naming the option, for an invalid value."""
    try:
        return kind(**options)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        raise RequestError(f"{flag(str(error['loc'][0]))} {error['input']}: {error['msg'].lower()}") from invalid


def refuse_given(config: BaseModel, fields: Sequence[str], reason: str) -> None:
    """Raises RequestError, with the reason, if one of these fields is not at its default: for
    options that would be ignored.
    """
    for field in fields:
        if getattr(config, field) != type(config).model_fields[field].default:
            raise RequestError(f"{flag(field)} {reason}: leave it out")


class TrainConfig(BaseModel):
    """The options of `hvscale train`: each docstring is an option's help text.

    Create it with `TrainConfig.of`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    model: str = "edsr-baseline"
    """Train this model: one of `hvscale models`, a torchvision classifier, or
    package.module:function.
    """

    scale: Literal[2, 3, 4] = 2
    """Upscale by this factor: 2, 3 or 4."""
    n_resblocks: SmallCount | None = None
    """Set the number of residual blocks. [default: the model's own]"""
    n_feats: SmallCount | None = None
    """Set the number of feature maps of each convolution. [default: the model's own]"""
    res_scale: Factor | None = None
    """Multiply each block's residual by this. [default: the model's own]"""

    data: str = BUNDLED
    """Train on these images: "bundled" (photos from the scikit-image and scikit-learn wheels),
    "synthetic" (noise), or a folder. Super-resolution accepts DIV2K, a benchmark set (HR,
    LR_bicubic/X2) or any folder of images; classifiers accept folders of classes, or train and val
    with these.
    """
    train_images: str | None = None
    """Train on these images, such as 1-800: file numbers of DIV2K, otherwise positions by name."""
    val_images: str | None = None
    """Validate on these images, such as 801-810, numbered in the same way."""
    val_data: str | None = None
    """Validate on this folder, such as a benchmark set, and train on all of --data."""
    holdout: str | None = None
    """Hold out this photo for evaluation: file name without suffix. [default: the last by name]"""
    cache_gb: GigabytesOrZero = 32
    """Limit the disk cache of decoded images, in GB (10^9 bytes); other images are decoded at each
    use. 0: no cache.
    """
    cache_dir: Path | None = None
    """Cache decoded images in this folder, shared by the ranks of a node. [default:
    $HVSCALE_DECODED, or hvscale/decoded in the user's cache folder]
    """
    workers: ThreadsOrZero | None = None
    """Load batches ahead with this many threads per rank. [default: 0 if images are in memory or
    cached, else the number of computing threads]
    """

    batch_size: SmallCount = BATCH_SIZE
    """Set the images (or patches) per batch of one rank; a step has --batches-per-allreduce
    batches.
    """
    patch_size: SmallCount = 48
    """Set the width and height of low-resolution patches, in pixels."""
    image_size: SmallCount | None = None
    """Set the width and height of a classifier's images, in pixels. [default: the model's own]"""
    num_classes: SmallCount | None = None
    """Set the number of classes of synthetic data; other data determines it. [default: 1000]"""
    weights: Path | None = None
    """Start from this state dict, checkpoint or run folder; an EDSR of another scale initialises
    all layers but the tail.
    """

    optimizer: OptimizerName = "auto"
    """Use adam, sgd (momentum 0.9), or auto: Adam for super-resolution, SGD for classification."""
    learning_rate: Factor | None = None
    """Set the peak learning rate; it is scaled by ranks only with --scale-learning-rate. [default:
    1e-4 for super-resolution, 0.0125 for classification]
    """
    weight_decay: FactorOrZero = 0
    """Set the weight decay; 5e-5 is usual for classification."""
    schedule: LearningRateSchedule = "constant"
    """Keep the learning rate constant, or decay it to zero along a cosine."""
    warmup_steps: CountOrZero = 0
    """Warm up the learning rate linearly over this many steps: from zero, or with
    --scale-learning-rate from that of one rank.
    """
    warmup_epochs: FactorOrZero = 0
    """Set the warm-up in epochs instead; 5 are usual for a scaled learning rate."""
    scale_learning_rate: bool = False
    """Multiply the learning rate by ranks times --batches-per-allreduce (Goyal et al., 2017). With
    Adasum, only the ranks of one node count, and only if NCCL adds their gradients.
    """

    batches_per_allreduce: SmallCount = 1
    """Accumulate gradients over this many batches per exchange: a larger global batch with fewer
    messages.
    """
    fp16_allreduce: bool = False
    """Exchange gradients as fp16, in half the bytes. Values below 6e-8 are lost."""
    bf16_allreduce: bool = False
    """Exchange gradients as bf16 and add them in fp32: half the bytes, the range of fp32, 8
    significant bits. Horovod 0.28 cannot add bf16, so an all-to-all and an all-gather replace each
    all-reduce.
    """
    use_adasum: bool = False
    """Combine the ranks' updates by Adasum instead of averaging gradients: it adds orthogonal
    updates and averages parallel ones. Needs 2, 4, 8 ... ranks.
    """
    gradient_predivide_factor: Factor = 1
    """Divide gradients by this factor F before the sum and by ranks/F after it, which keeps fp16
    sums in range.
    """
    allreduce_groups: SmallCount | None = None
    """Exchange gradients in this many fixed groups, each as soon as it is complete. [default: the
    gradients that are ready in each cycle]
    """
    clip_norm: Factor | None = None
    """Clip the averaged gradients to this Euclidean norm."""
    sync_batch_norm: bool = False
    """Compute batch normalisation over all ranks, for small batches. Each layer adds a message to
    the forward pass and one to the backward pass.
    """

    steps: Count | None = None
    """Train for this many steps. [default: 1000 unless --epochs or --seconds is given, and with
    --resume as many as before]
    """
    epochs: Count | None = None
    """Train for this many epochs: 1000 batches of each rank for super-resolution, all images for a
    classifier.
    """
    seconds: Seconds | None = None
    """Train for about this many seconds. The ranks time the first steps to agree on a number of
    steps, which --resume keeps if the seconds are the same.
    """

    seed: Seed = 1
    """Seed the initial weights and the order of crops and images."""
    precision: Precision = "auto"
    """Compute in fp32, bf16 autocast, fp16 autocast with a loss scaler, or auto: the faster of fp32
    and bf16, as measured at the start.
    """
    memory_format: MemoryFormat = "auto"
    """Use channels-last or contiguous images, or auto: the faster, as measured at the start."""
    compile: bool = False
    """Compile each block of the model with torch.compile. Takes about a minute at the start and
    needs a C++ compiler.
    """
    threads: Threads | None = None
    """Use this many computing threads per rank. [default: OMP_NUM_THREADS, or its share of the
    cores]
    """
    pin: bool = False
    """Bind each rank's threads to separate cores, if the host has a core for each rank."""

    checkpoint_every: CountOrZero = 0
    """Save a checkpoint every N steps and at the end. 0: never."""
    checkpoint_keep: SmallCount = 3
    """Keep this many checkpoints; older ones are removed."""
    checkpoint_dir: Path | None = None
    """Save checkpoints in this folder. [default: checkpoints/ in the run folder]"""
    commit_every: Count = 10
    """Commit every N steps in an elastic job: if a rank is lost, training continues from these
    in-memory copies. No step is lost when hosts are added or removed.
    """
    stall_timeout: SecondsOrZero = 300
    """End the job if no step finishes within this many seconds; 0: never. Each rank first writes
    its Python stacks to its log.
    """
    resume: str | None = None
    """Resume from a checkpoint file, a folder of checkpoints, a run folder, or "auto": the newest
    checkpoint in --run or --checkpoint-dir, if there is one.
    """

    wandb: WandbMode = "off"
    """Log to Weights & Biases: offline (in the run folder) or online. Logging failures never end
    training.
    """
    wandb_project: str | None = None
    """Log to this project. [default: $WANDB_PROJECT, or hvscale]"""
    tensorboard: bool = False
    """Write TensorBoard event files to tensorboard/ in the run folder."""
    one_rank_run: Path | None = None
    """Log scaling efficiency with --wandb and --tensorboard, relative to this run folder of the
    same training on one rank.
    """

    run: Path | None = None
    """Write to this run folder. [default: $HVSCALE_RUN, or a new folder under runs/]"""

    @classmethod
    def of(cls, **options: Any) -> "TrainConfig":
        """A configuration. Raises RequestError, naming the option, for an invalid value."""
        config = checked(cls, **options)
        lengths = [flag(name) for name in ("steps", "epochs", "seconds") if getattr(config, name) is not None]
        if len(lengths) > 1:
            raise RequestError(f"{' and '.join(lengths)} exclude each other: choose one")
        if config.warmup_steps and config.warmup_epochs:
            raise RequestError("--warmup-steps and --warmup-epochs exclude each other: choose one")
        config._check_exchange()
        if not lengths and config.resume is None:
            return config.model_copy(update={"steps": PUBLIC_EPOCH_BATCHES})
        return config

    def _check_exchange(self) -> None:
        """Raises RequestError if options of the gradient exchange exclude each other."""
        if self.use_adasum:
            if self.precision == "fp16":
                raise RequestError("--use-adasum and --precision fp16 exclude each other: use --precision bf16")
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
        """The fields among `names` that are not at their defaults."""
        return [name for name in names if getattr(self, name) != type(self).model_fields[name].default]

    def edsr_options(self) -> dict[str, Any]:
        """The given keyword arguments for `hvscale.models.build` of an EDSR."""
        options = {"n_resblocks": self.n_resblocks, "n_feats": self.n_feats, "res_scale": self.res_scale}
        return {name: value for name, value in options.items() if value is not None}

    def arguments(self) -> list[str]:
        """The arguments of `hvscale train`: MODEL and each option that is not at its default."""
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"model"})
        words = ([flag(name)] if value is True else [flag(name), str(value)] for name, value in given.items())
        return [self.model, *itertools.chain.from_iterable(words)]


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")
