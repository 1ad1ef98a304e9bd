"""A step of the check, and what its code may use: commands, ranks and lines."""

import json
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvscale.bench.collectives.request import Device
from hvscale.bench.gpu_check import commands
from hvscale.bench.gpu_check.commands import CommandFailedError, Finished, TimeLimitError
from hvscale.bench.gpu_check.document import CheckLine, Machine, Status
from hvscale.core.documents import parse_json
from hvscale.core.files import read_text
from hvscale.core.registry import Registry
from hvscale.core.run_folder import RunFolder
from hvscale.launch import flavours

RANK_SIDE = "hvscale.bench.gpu_check.rank_side"
OWN_HOST = Path(__file__).parent / "rank_side" / "own_host"
RANK_VARIABLES = "HVSCALE_RANK_VARIABLES"  # for own_host/sitecustomize.py
SHARING_NCCL = (2, 30)  # the first release that lets ranks share a GPU
Figure = float | int | str | None


@dataclass(frozen=True)
class Step:
    """One part of the check: `run` adds its lines to the context.

    `order`: steps run in ascending order. `summary`: for --list.
    """

    name: str
    summary: str
    order: int
    limit_seconds: float
    run: "Callable[[StepContext], None]"


STEPS: Registry[Step] = Registry("part", "hvscale.bench.gpu_check.steps")


def step(
    name: str, summary: str, *, order: int, limit_seconds: float
) -> "Callable[[Callable[[StepContext], None]], Step]":
    """Decorator: registers a function as a step."""
    return lambda run: STEPS.register(name, Step(name, summary, order, limit_seconds, run))


def all_steps() -> list[Step]:
    """All steps, in the order in which they run."""
    return sorted(STEPS.all().values(), key=lambda one: one.order)


@dataclass
class StepContext:
    """What a step works with. `add` receives each line at once.

    `device`: cpu in a dry run. `folder`: the step's own. `gpu_memory_at_start`: bytes in use on
    each GPU before the first step. `left_processes`: what earlier steps left.
    """

    step: Step
    limit_seconds: float
    machine: Machine
    device: Device
    mpi: str
    folder: Path
    add: Callable[[CheckLine], None]
    gpu_memory_at_start: Sequence[int] = ()
    left_processes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.limit_seconds
        self.commands = 0

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def launcher_beside_nccl(self) -> str:
        """A flavour without MPI on GPUs, so that NCCL's calls are the only ones."""
        without_mpi = [one.name for one in flavours.FLAVOURS.all().values() if not one.has_mpi]
        return without_mpi[0] if self.on_gpu else self.mpi

    # Lines

    def hold(self, claim: str, held: bool, found: str = "", reason: str = "", **figures: Figure) -> None:
        """Add a line: held or failed; in a dry run, "dry run" in place of held."""
        status: Status = "failed" if not held else "held" if self.on_gpu else "dry run"
        reason = (reason or "the check did not hold") if not held else ""
        self.add(
            CheckLine(step=self.step.name, claim=claim, status=status, found=found, figures=figures, reason=reason)
        )

    def hold_timing(self, claim: str, held: bool, found: str, reason: str = "", **figures: Figure) -> None:
        """As `hold`, for a claim about time: on the CPU the figures are kept but not judged."""
        if self.on_gpu:
            self.hold(claim, held, found, reason, **figures)
            return
        text = "a time on a CPU says nothing about a GPU; it was measured to try the code"
        line = CheckLine(step=self.step.name, claim=claim, status="needs a GPU", found=found, figures=figures)
        self.add(line.model_copy(update={"reason": text}))

    def needs_gpu(self, claim: str, reason: str) -> bool:
        """Whether this is a dry run; it then names the claim, which was not checked."""
        if not self.on_gpu:
            self.add(CheckLine(step=self.step.name, claim=claim, status="needs a GPU", reason=reason))
        return not self.on_gpu

    def not_possible(self, claim: str, reason: str) -> None:
        self.add(CheckLine(step=self.step.name, claim=claim, status="not possible", reason=reason))

    @contextmanager
    def claim(self, claim: str) -> Iterator[None]:
        """Context: a command that fails is a failed line, and the step goes on.

        Not where the step's time is over.
        """
        try:
            yield
        except TimeLimitError:
            raise
        except CommandFailedError as error:
            self.failed(claim, error)

    def failed(self, claim: str, error: CommandFailedError) -> None:
        self.add(
            CheckLine(
                step=self.step.name,
                claim=claim,
                status="failed",
                reason=str(error),
                last_lines=error.last_lines,
            )
        )

    # Commands

    def run(
        self,
        name: str,
        words: Sequence[object],
        *,
        statuses: Sequence[int] = (0,),
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Finished:
        """Run a command within the step's time. `name`: of its output files.

        Raises as `commands.run`.
        """
        self.commands += 1
        return commands.run(
            [str(word) for word in words],
            output=self.folder / f"{self.commands:02}-{name}",
            deadline=self.deadline,
            statuses=statuses,
            environment={**command_environment(), **(environment or {})},
            folder=folder or self.folder,
        )

    def hvscale(self, name: str, *words: object, statuses: Sequence[int] = (0,)) -> Finished:
        """Run an hvscale command. Raises as `commands.run`."""
        return self.run(name, [hvscale_program(), *words], statuses=statuses)

    def hvscale_json(self, name: str, *words: object) -> dict[str, Any]:
        """Run an hvscale command with --json and return its document."""
        return self.parse(self.hvscale(name, *words, "--json").stdout, f"hvscale {words[0]} --json")

    def program(self, module: str, *arguments: object) -> list[str]:
        """The command of a program in rank_side/."""
        return [sys.executable, "-P", "-m", f"{RANK_SIDE}.{module}", *map(str, arguments)]

    def hvscale_words(self, verb: str, np: int, name: str) -> list[object]:
        """The start of a command that starts np ranks, up to its own options."""
        run = self.folder / name
        return [hvscale_program(), verb, "-np", np, "--mpi", self.mpi, "--run", run, *self.sharing_options(np)]

    def launch(
        self,
        name: str,
        np: int,
        command: Sequence[object],
        *options: object,
        verb: str = "launch",
        mpi: str | None = None,
        statuses: Sequence[int] = (0,),
    ) -> RunFolder:
        """Start `command` on np ranks and wait for its end. Raises as `commands.run`."""
        run = self.folder / name
        launcher = ("-np", np, "--mpi", mpi or self.mpi, "--run", run, *self.sharing_options(np), *options)
        self.hvscale(name, verb, *launcher, "--", *command, statuses=statuses)
        return RunFolder(run)

    def rank_results(self, run: RunFolder, np: int) -> list[dict[str, Any]]:
        """What each rank of a program in rank_side/ wrote, in rank order.

        Raises CommandFailedError if a rank wrote nothing.
        """
        return [self.read_json(run.path / f"check-rank-{rank}.json") for rank in range(np)]

    def read_json(self, path: Path) -> dict[str, Any]:
        """Raises CommandFailedError if the file is not there or is no JSON object."""
        try:
            return self.parse(read_text(path), path.name)
        except (OSError, ValueError) as error:
            raise CommandFailedError(f"{path} cannot be read: {error}", []) from error

    def parse(self, text: str, what: str) -> dict[str, Any]:
        try:
            document = parse_json(text)
        except ValueError as error:
            raise CommandFailedError(f"{what} is no JSON: {error}", text.splitlines()[-3:]) from error
        if not isinstance(document, dict):
            raise CommandFailedError(f"{what} is no JSON object", text.splitlines()[-3:])
        return document

    # Ranks that share a GPU

    def shares_gpu(self, np: int) -> bool:
        return self.on_gpu and np > len(self.machine.gpus)

    def sharing_variables(self, np: int) -> dict[str, str]:
        """The variables with which NCCL accepts np ranks; none if each has its own GPU."""
        if not self.shares_gpu(np):
            return {}
        if self.machine.nccl >= SHARING_NCCL:
            return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
        others = os.environ.get("PYTHONPATH", "")
        return {
            "PYTHONPATH": f"{OWN_HOST}{os.pathsep}{others}" if others else str(OWN_HOST),
            RANK_VARIABLES: ",".join(one.rank for one in flavours.all_rank_variables()),
        }

    def sharing_options(self, np: int) -> list[str]:
        """The same as options of `hvscale launch`."""
        return [word for name, value in self.sharing_variables(np).items() for word in ("--env", f"{name}={value}")]


def describe_sharing(machine: Machine) -> str:
    """How two ranks share the GPU; empty if there are several GPUs or none."""
    if len(machine.gpus) != 1:
        return ""
    if machine.nccl >= SHARING_NCCL:
        return f"ranks share one GPU: NCCL {machine.nccl_text} with NCCL_MULTI_RANK_GPU_ENABLE=1"
    return (
        f"ranks share one GPU: NCCL {machine.nccl_text} refuses this before release 2.30, so each rank gets its own "
        "NCCL_HOSTID, and NCCL sends over sockets as between hosts"
    )


def hvscale_program() -> str:
    """The command of this environment."""
    return str(Path(sysconfig.get_path("scripts")) / "hvscale")


def command_environment() -> dict[str, str]:
    """The caller's environment, with this environment's programs first in PATH."""
    scripts, path = sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HVSCALE_RUN")}
    return {**inherited, "PATH": f"{scripts}{os.pathsep}{path}", "COLUMNS": "200"}


def machine_of(text: str) -> Machine:
    """The machine that rank_side/machine.py describes. Raises ValueError for anything else."""
    return Machine.model_validate(json.loads(text))
