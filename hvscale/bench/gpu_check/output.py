"""What `hvscale check-gpu` shows: progress, the list of parts, and the table of lines."""

from collections.abc import Sequence

from pydantic import BaseModel
from rich import box
from rich.progress import MofNCompleteColumn
from rich.table import Table
from rich.text import Text

from hvscale.bench.gpu_check.document import CheckLine, GpuCheckDocument, Status, StepRun
from hvscale.bench.gpu_check.step import Step
from hvscale.core.units import GIB
from hvscale.report.progress import ProgressBar

STYLES = {"held": "green", "failed": "red", "not possible": "yellow"}


class LineRow(BaseModel):
    """A row of --csv."""

    step: str
    claim: str
    status: Status
    found: str
    reason: str


class CheckProgress(ProgressBar):
    """A bar over the steps, and each line as soon as it is known."""

    def __init__(self, steps: Sequence[StepRun]) -> None:
        super().__init__(len(steps), MofNCompleteColumn())

    def starting(self, step: StepRun) -> None:
        self.update(description=f"{step.name}, at most {step.limit_seconds:g} s")

    def added(self, line: CheckLine) -> None:
        self.print(f"{line.status}: {line.claim}: {line.text}".removesuffix(": "))
        for text in line.last_lines:
            self.print(f"    {text}")

    def finished(self, step: StepRun) -> None:
        self.update(advance=1)


def rows(document: GpuCheckDocument) -> list[LineRow]:
    return [LineRow(**line.model_dump(include=set(LineRow.model_fields))) for line in document.lines]


def machine_facts(document: GpuCheckDocument) -> list[str]:
    """The GPU and the libraries, in words."""
    machine = document.machine
    if machine is None:
        return []
    gpus = [
        f"{name}, {memory / GIB:.0f} GiB" for name, memory in zip(machine.gpus, machine.gpu_memory_bytes, strict=True)
    ]
    libraries = [
        f"PyTorch {machine.torch}",
        *([f"CUDA {machine.cuda}"] if machine.cuda else []),
        *([f"NCCL {machine.nccl_text}"] if machine.nccl else []),
        f"Horovod {machine.horovod or 'none'}",
        *([f"driver {machine.driver}"] if machine.driver else []),
    ]
    return [*(gpus or ["no GPU"]), *libraries, *([document.sharing] if document.sharing else [])]


def list_rows(steps: Sequence[Step]) -> list[list[str]]:
    """The parts for --only: name, time limit, what it checks; then the sum of the limits."""
    total = sum(step.limit_seconds for step in steps) / 60
    rows = [[step.name, f"{step.limit_seconds:g} s", step.summary] for step in steps]
    return [*rows, ["all of these", f"{total:.1f} min", "at most"]]


def terminal_table(document: GpuCheckDocument) -> Table:
    """A row for each line; the first one of a step names it. Long cells are wrapped."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("part", "claim", "result", "found"):
        table.add_column(name, overflow="fold")
    for step in document.steps:
        lines = [line for line in document.lines if line.step == step.name]
        for number, line in enumerate(lines):
            shown = Text(line.status, style=STYLES.get(line.status, ""))
            table.add_row("" if number else step.name, line.claim, shown, line.text)
        if not lines:  # not reached
            table.add_row(step.name, "", step.state, "")
    return table
