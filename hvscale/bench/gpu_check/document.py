"""check-gpu.json: the machine, a line for each claim, and how long each step took."""

from typing import Literal

from pydantic import BaseModel

from hvscale.studies.document import StudyDocument

# held, failed: on a GPU. dry run: the same code ran on the CPU, and its checks passed there.
# needs a GPU: a dry run cannot do it. not possible: this machine lacks something.
Status = Literal["held", "failed", "dry run", "needs a GPU", "not possible"]
STATUSES: tuple[Status, ...] = ("held", "failed", "not possible", "dry run", "needs a GPU")
StepState = Literal["waiting", "running", "finished", "failed", "interrupted"]


class Machine(BaseModel):
    """What a process of this environment finds on the machine.

    `gpus`: by PyTorch. `nccl`: the version that PyTorch loads, empty without a GPU.
    `nccl_in_horovod`: whether Horovod was built with NCCL; None without Horovod. `problem`: why
    PyTorch cannot use a GPU.
    """

    python: str
    torch: str
    cuda: str | None
    cudnn: int | None
    nccl: tuple[int, ...] = ()
    triton: str | None
    compiler: str | None
    horovod: str | None
    nccl_in_horovod: bool | None
    mpi4py: str | None
    gpus: list[str] = []
    gpu_memory_bytes: list[int] = []
    compute_capability: list[tuple[int, int]] = []
    driver: str = ""
    problem: str = ""

    @property
    def nccl_text(self) -> str:
        return ".".join(map(str, self.nccl)) or "none"


class CheckLine(BaseModel):
    """One claim and what was found.

    `figures`: with units in their keys. `reason`: why it failed or was not possible. `last_lines`:
    of the command that failed.
    """

    step: str
    claim: str
    status: Status
    found: str = ""
    figures: dict[str, float | int | str | None] = {}
    reason: str = ""
    last_lines: list[str] = []

    @property
    def text(self) -> str:
        """The reason, if there is one, and what was found."""
        return "; ".join(filter(None, (self.reason, self.found)))


class StepRun(BaseModel):
    """One step. `folder`: below the check's own, with the output of each command."""

    name: str
    title: str
    limit_seconds: float
    folder: str
    state: StepState = "waiting"
    seconds: float | None = None
    problem: str = ""


class GpuCheckDocument(StudyDocument):
    """What `hvscale check-gpu --json` prints and writes to check-gpu.json.

    `sharing`: how several ranks share one GPU, empty if each has its own.
    """

    schema_: Literal["hvscale/check-gpu/1"] = "hvscale/check-gpu/1"
    dry_run: bool
    mpi: str
    machine: Machine | None = None
    sharing: str = ""
    lines: list[CheckLine] = []
    steps: list[StepRun] = []

    def count(self, status: Status) -> int:
        return sum(line.status == status for line in self.lines)

    @property
    def summary(self) -> str:
        """`12 held, 1 failed, 2 not possible`."""
        return ", ".join(f"{self.count(status)} {status}" for status in STATUSES if self.count(status)) or "no lines"
