"""What a training run is asked to do. Needs no torch, so that a command line can read and explain it at once."""

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

Precision = Literal["auto", "fp32", "bf16", "fp16"]
MemoryFormat = Literal["auto", "channels-last", "contiguous"]
Schedule = Literal["constant", "cosine"]
OptimizerName = Literal["auto", "adam", "sgd"]
WandbMode = Literal["off", "offline", "online"]
BUNDLED = "bundled"
SYNTHETIC = "synthetic"
PUBLIC_EPOCH_STEPS = 1000  # EDSR's public implementation (Lim et al. 2017) counts 1000 batches as an epoch


Config = TypeVar("Config", bound=BaseModel)


def checked(kind: type[Config], options: dict[str, Any]) -> Config:
    """Raises RequestError, in one line that names the option, when a value is not possible."""
    try:
        return kind(**options)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        raise RequestError(f"{flag(str(error['loc'][0]))} {error['input']}: {error['msg'].lower()}") from invalid


class TrainConfig(BaseModel):
    """Make one with `TrainConfig.of`. Each field is an option of `hvscale train`; the text below a field is its help."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    model: str = "edsr-baseline"
    """Model to train, one of those that hvscale.models knows."""

    scale: Literal[2, 3, 4] = 2
    """How many times the output is wider and higher than the input."""
    n_resblocks: SmallCount | None = None
    """Residual blocks; the model's own number when not given."""
    n_feats: SmallCount | None = None
    """Feature maps of each convolution; the model's own number when not given."""
    res_scale: Factor | None = None
    """Factor on each block's residual; the model's own when not given."""

    data: str = BUNDLED
    """Images: "bundled" (photos in the scikit-image and scikit-learn wheels), "synthetic", or a folder: DIV2K, a benchmark set (HR, LR_bicubic/X2),
    any folder of images (low resolution is then made from them), or for a classifier folders of classes, below train and val or not."""
    train_images: str | None = None
    """Images to train on, such as 1-800: DIV2K's numbers, elsewhere places in the order of names."""
    val_images: str | None = None
    """Images to validate with, such as 801-810, numbered likewise."""
    val_data: str | None = None
    """Another folder to validate with, such as a benchmark set; all of --data is then trained on."""
    holdout: str | None = None
    """Photo kept out of training and measured, by file name without suffix; when not given, the last by name."""
    cache_gb: GigabytesOrZero = 32
    """Most that decoded images may take on disk, in 10^9 bytes; those beyond are decoded each time they are used. 0: none."""
    cache_dir: Path | None = None
    """Folder of decoded images, shared by the ranks of a node; when not given $HVSCALE_DECODED, or hvscale/decoded in the user's cache folder."""
    workers: ThreadsOrZero | None = None
    """Threads of a rank that prepare batches ahead; when not given none where images are mapped or in memory, else as many as it computes with."""

    batch_size: SmallCount = 16
    """Patches or images in a batch of one rank; a step has --batches-per-allreduce of them."""
    patch_size: SmallCount = 48
    """Width and height of a low-resolution patch, in pixels."""
    image_size: SmallCount | None = None
    """Width and height of a classifier's images, in pixels; the model's own when not given."""
    num_classes: SmallCount | None = None
    """Classes of synthetic data, 1000 when not given; other data has its own."""
    weights: Path | None = None
    """State dict to start from; of another scale's EDSR, all but its tail is taken."""

    optimizer: OptimizerName = "auto"
    """Adam, SGD with momentum 0.9, or what the task's publications use: Adam for super-resolution, SGD for classification."""
    learning_rate: Factor | None = None
    """At its highest; 1e-4 for super-resolution and 0.0125 for classification when not given. It is not multiplied by the number of ranks."""
    weight_decay: FactorOrZero = 0
    """Factor of the penalty on squared weights; 5e-5 is usual for classification."""
    schedule: Schedule = "constant"
    """Learning rate over the steps: constant, or falling to zero as a cosine."""
    warmup_steps: CountOrZero = 0
    """Steps over which the learning rate rises linearly at the start: from zero, or with --scale-learning-rate from what it is for one rank."""
    warmup_epochs: FactorOrZero = 0
    """The same in epochs; 5 are usual for a learning rate that is scaled."""
    scale_learning_rate: bool = False
    """Multiply the learning rate by the batches of a step: ranks times --batches-per-allreduce (Goyal et al., 2017). With Adasum, ranks count
    within a node where NCCL adds up there, and not at all elsewhere."""

    batches_per_allreduce: SmallCount = 1
    """Batches whose gradients a rank adds up before they are exchanged: a larger joint batch, with fewer messages. A step is all of them."""
    fp16_allreduce: bool = False
    """Exchange gradients as fp16: half the bytes, and what is below 6e-8 is lost."""
    bf16_allreduce: bool = False
    """Exchange gradients as bf16, and add them up as fp32: half the bytes, the range of fp32 and 8 bits of its mantissa. Horovod 0.28 adds up no
    bf16, so each all-reduce is an all-to-all and an all-gather."""
    use_adasum: bool = False
    """Combine the ranks' updates by Adasum instead of averaging gradients: it adds where they are orthogonal, and averages where they are parallel.
    Needs 2, 4, 8 ... ranks."""
    gradient_predivide_factor: Factor = 1
    """Divide gradients by this before they are added up, and by the rest of the number of ranks after it: keeps sums of fp16 gradients in range."""
    allreduce_groups: SmallCount | None = None
    """Exchange the gradients in this many groups, each when all of it is there, instead of whatever is there at the end of each cycle."""
    clip_norm: Factor | None = None
    """Scale the averaged gradients of all parameters down to this Euclidean norm where it is larger."""
    sync_batch_norm: bool = False
    """Batch normalisation over the batches of all ranks: for batches of few images a rank. One more message forward and backward for each layer."""

    steps: Count | None = None
    """Steps to train, exactly; 1000 when neither this nor --epochs or --seconds is given."""
    epochs: Count | None = None
    """Epochs to train: for super-resolution of 1000 steps, as the public implementation counts, for a classifier of all images."""
    seconds: Seconds | None = None
    """About how long to train: the first steps are timed, then all ranks agree on a number of steps."""

    seed: Seed = 1
    """Of the initial weights and of the crops."""
    precision: Precision = "auto"
    """Arithmetic: fp32, bf16 autocast, whichever of these is measured to be faster at the start, or fp16 autocast with a loss scaler."""
    memory_format: MemoryFormat = "auto"
    """Order of images in memory: channels-last, contiguous, or whichever is measured to be faster at the start."""
    compile: bool = False
    """Compile each block of the model by torch.compile: takes a minute or so at the start, and a C++ compiler."""
    threads: Threads | None = None
    """Threads a rank computes with; when not given OMP_NUM_THREADS, or else the rank's share of the cores."""
    pin: bool = False
    """Bind each rank's computing threads to cores of their own, where there are enough for the ranks of a host."""

    checkpoint_every: CountOrZero = 0
    """Steps between checkpoints, from which training goes on after whatever ended it; also one at the end. 0: none."""
    checkpoint_keep: SmallCount = 3
    """Checkpoints kept, the newest."""
    checkpoint_dir: Path | None = None
    """Folder of the checkpoints; when not given checkpoints/ in the run folder."""
    commit_every: Count = 10
    """In an elastic job: steps between commits, copies in each rank's memory from which training goes on when a rank has died. Hosts that come or
    go lose no step."""
    stall_timeout: SecondsOrZero = 300
    """Seconds without the end of a step after which each rank writes its Python stacks to its log and the job ends. 0: never."""
    resume: str | None = None
    """Go on from a checkpoint: a file, a folder of them, a run folder, or "auto", the newest of --run or --checkpoint-dir if there is one."""

    wandb: WandbMode = "off"
    """Log to Weights & Biases: offline into the run folder, or online. Its failures never end training. Example: --wandb offline"""
    wandb_project: str | None = None
    """Project to log to; when not given $WANDB_PROJECT, or hvscale."""
    tensorboard: bool = False
    """Write TensorBoard's event files into tensorboard/ of the run folder."""
    one_rank_run: Path | None = None
    """Run folder of the same training on one rank: against its throughput --wandb and --tensorboard show scaling efficiency."""

    run: Path | None = None
    """Run folder; when not given $HVSCALE_RUN, or else a new one under runs/."""

    @classmethod
    def of(cls, **options: Any) -> "TrainConfig":
        """Raises RequestError, in one line that names the option, when a value is not possible."""
        config = checked(cls, options)
        lengths = [flag(name) for name in ("steps", "epochs", "seconds") if getattr(config, name) is not None]
        if len(lengths) > 1:
            raise RequestError(f"{' and '.join(lengths)} both say how long to train: give one of them")
        if config.use_adasum:
            for name in ("gradient_predivide_factor", "allreduce_groups", "clip_norm"):
                if getattr(config, name) != cls.model_fields[name].default:
                    raise RequestError(f"--use-adasum exchanges updates, not gradients: leave out {flag(name)}")
        if config.allreduce_groups and config.gradient_predivide_factor != 1:
            raise RequestError(
                "Horovod does not divide before it adds up groups: leave out one of --allreduce-groups and --gradient-predivide-factor"
            )
        if config.bf16_allreduce:
            for name in ("fp16_allreduce", "use_adasum", "gradient_predivide_factor", "allreduce_groups"):
                if getattr(config, name) != cls.model_fields[name].default:
                    raise RequestError(f"--bf16-allreduce does not go with {flag(name)}: leave out one of them")
        if config.warmup_steps and config.warmup_epochs:
            raise RequestError("--warmup-steps and --warmup-epochs both say how long: give one of them")
        if not lengths:
            return config.model_copy(update={"steps": PUBLIC_EPOCH_STEPS})
        return config

    def edsr_options(self) -> dict[str, Any]:
        """The keyword arguments of an EDSR for `hvscale.models.build`: those that were given."""
        options = {"n_resblocks": self.n_resblocks, "n_feats": self.n_feats, "res_scale": self.res_scale}
        return {name: value for name, value in options.items() if value is not None}

    def arguments(self) -> list[str]:
        """The words behind `hvscale train` that say the same: MODEL and each option that is not at its default."""
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"model"})
        words = ([flag(name)] if value is True else [flag(name), str(value)] for name, value in given.items())
        return [self.model, *itertools.chain.from_iterable(words)]


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")
