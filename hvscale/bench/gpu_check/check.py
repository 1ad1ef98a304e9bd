"""Runs the steps one after the other, keeps what they find, and ends what they leave."""

import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hvscale.bench.collectives.request import Device
from hvscale.bench.gpu_check import commands, gpu_memory
from hvscale.bench.gpu_check.commands import LAST_LINES, CommandFailedError, TimeLimitError
from hvscale.bench.gpu_check.document import CheckLine, GpuCheckDocument, Machine, StepRun
from hvscale.bench.gpu_check.step import (
    RANK_SIDE,
    STEPS,
    Step,
    StepContext,
    all_steps,
    command_environment,
    describe_sharing,
    machine_of,
)
from hvscale.core.documents import to_json
from hvscale.core.errors import HvscaleError, RequestError, UntrustedError
from hvscale.core.host import describe_host, gpus
from hvscale.core.run_folder import cannot_write, default_run_path, write_text
from hvscale.launch import flavours
from hvscale.launch.supervision import processes
from hvscale.launch.supervision.interrupts import (
    InterruptedWaitError,
    catch_signals,
    disable_interrupts,
    interruptible,
)
from hvscale.studies.base import lock_folder, require_empty

MACHINE_SECONDS = 120
DRY_RUN_FACTOR = 3  # a dry run may have few cores, and compiles for a CPU, which takes longer
NO_GPU = (
    "no NVIDIA GPU here: nvidia-smi lists none; run this on a machine with one, or add --dry-run to run each step on "
    "the CPU up to the GPU"
)


class Reporter(Protocol):
    """Shows the progress of a check."""

    def starting(self, step: StepRun) -> None: ...

    def added(self, line: CheckLine) -> None: ...

    def finished(self, step: StepRun) -> None: ...


class CheckInterruptedError(HvscaleError):
    """A signal ended the check; its document holds what was found."""

    def __init__(self, number: int, document: GpuCheckDocument) -> None:
        name = signal.Signals(number).name
        super().__init__(f"interrupted by {name}; {document.folder} holds what was found: {document.summary}")
        self.exit_status = 128 + number


def select(parts: Sequence[str]) -> list[Step]:
    """The steps of `--only a,b --only c`, in the order in which they run; all without it.

    Raises RequestError, suggesting the nearest name, for an unknown one.
    """
    names = [name.strip() for word in parts for name in word.split(",")]
    chosen = {STEPS.get(name, "--only").name for name in names}
    return [one for one in all_steps() if one.name in chosen or not names]


def limit(step: Step, dry_run: bool) -> float:
    """The time limit of a step, in seconds."""
    return step.limit_seconds * (DRY_RUN_FACTOR if dry_run else 1)


def find_machine(dry_run: bool) -> Machine:
    """What is installed here. Raises RequestError if there is no GPU for a check that needs one."""
    if not dry_run and not gpus() and not Path("/dev/nvidiactl").exists():
        raise RequestError(NO_GPU)
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-m", f"{RANK_SIDE}.machine"],
            capture_output=True,
            text=True,
            timeout=MACHINE_SECONDS,
            check=True,
            env=command_environment(),
        )
        machine = machine_of(asked.stdout)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"status {error.returncode}"])[-1]
        raise RequestError(f"PyTorch does not start here: {last}; `hvscale doctor` names what to fix") from error
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise RequestError(f"PyTorch does not answer here: {error}; `hvscale doctor` names what to fix") from error
    if not dry_run and not machine.gpus:
        raise RequestError(f"{machine.problem}: install a PyTorch for this GPU and driver, or add --dry-run")
    return machine.model_copy(update={"driver": gpu_memory.driver()})


@dataclass
class GpuCheck:
    """One check in its folder; check-gpu.json is written after each line."""

    path: Path
    document: GpuCheckDocument
    steps: list[Step]

    @classmethod
    def of(cls, parts: Sequence[str], *, dry_run: bool, mpi: str, folder: Path | None) -> "GpuCheck":
        """Raises RequestError for an invalid request, and if there is no GPU but no `dry_run`."""
        steps = select(parts)
        if not flavours.get(mpi).has_mpi:
            raise RequestError(f"--mpi {mpi}: the check starts its ranks by MPI; give one of {with_mpi()}")
        path = (folder or default_run_path(["check-gpu"])).absolute()
        require_empty(path)
        machine = find_machine(dry_run)
        document = GpuCheckDocument(
            folder=str(path),
            host=describe_host(),
            dry_run=dry_run,
            mpi=mpi,
            machine=machine,
            sharing=describe_sharing(machine) if not dry_run else "",
            steps=[
                StepRun(name=one.name, title=one.summary, limit_seconds=limit(one, dry_run), folder=one.name)
                for one in steps
            ],
        )
        return cls(path, document, steps)

    @property
    def page(self) -> Path:
        return self.path / "check-gpu.html"

    def run(self, reporter: Reporter) -> None:
        """Run the steps. Raises CheckInterruptedError after a signal, UntrustedError if a line
        failed, RequestError if the folder cannot be written.
        """
        with lock_folder(self.path):
            require_empty(self.path)
            with processes.adopt_orphans(), catch_signals() as caught:
                try:
                    with interruptible():
                        self._run_all(reporter)
                    self.document.state = "finished"
                except InterruptedWaitError:
                    self.document.state = "interrupted"
                except BaseException:
                    self.document.state = "failed"
                    raise
                finally:
                    disable_interrupts()
                    commands.kill_descendants()
                    self._write_all()
        if caught:
            raise CheckInterruptedError(caught[0], self.document)
        if self.document.count("failed"):
            first = next(line for line in self.document.lines if line.status == "failed")
            raise UntrustedError(
                f"{self.document.count('failed')} of {len(self.document.lines)} lines failed, first {first.step}: "
                f"{first.claim}: {first.reason}"
            )

    def _run_all(self, reporter: Reporter) -> None:
        memory = gpu_memory.used_bytes()
        left: list[str] = []
        for step, entry in zip(self.steps, self.document.steps, strict=True):
            self._run_step(step, entry, reporter, memory, left)

    def _run_step(self, step: Step, entry: StepRun, reporter: Reporter, memory: Sequence[int], left: list[str]) -> None:
        """Run one step, whatever becomes of it; an interrupt goes on."""
        entry.state = "running"
        reporter.starting(entry)
        self.write()
        add = self._adder(reporter)
        folder = self.path / entry.folder
        machine = self.document.machine
        assert machine is not None  # noqa: S101 - `of` sets it
        started = time.monotonic()
        try:
            folder.mkdir()
            device: Device = "cpu" if self.document.dry_run else "cuda"
            context = StepContext(
                step, entry.limit_seconds, machine, device, self.document.mpi, folder, add, memory, left
            )
            step.run(context)
            entry.state = "finished"
        except CommandFailedError as error:
            entry.state, entry.problem = "failed", str(error)
            what = f"ends within {entry.limit_seconds:g} s" if isinstance(error, TimeLimitError) else "runs to its end"
            add(failed_line(step, what, str(error), error.last_lines))
        except OSError as error:
            raise cannot_write(self.path, error) from error
        except InterruptedWaitError:
            entry.state = "interrupted"
            raise
        except Exception as error:  # a defect of the step, which must not hide what the others find
            entry.state, entry.problem = "failed", f"{type(error).__name__}: {error}"
            add(failed_line(step, "runs to its end", entry.problem, traceback.format_exc().splitlines()[-LAST_LINES:]))
        finally:
            entry.seconds = time.monotonic() - started
            left += commands.kill_descendants(commands.GRACE_SECONDS)
        self.write()
        reporter.finished(entry)

    def _adder(self, reporter: Reporter) -> Callable[[CheckLine], None]:
        def add(line: CheckLine) -> None:
            self.document.lines.append(line)
            self.write()
            reporter.added(line)

        return add

    def write(self) -> None:
        """Raises RequestError if the folder cannot be written or the disk is full."""
        try:
            write_text(self.path / "check-gpu.json", to_json(self.document) + "\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _write_all(self) -> None:
        """The document, then the page."""
        self.write()
        # Imported here: an invalid request must not wait for Plotly.
        from hvscale.bench.gpu_check.page import page

        try:
            write_text(self.page, page(self.document))
        except OSError as error:
            raise cannot_write(self.path, error) from error


def failed_line(step: Step, what: str, reason: str, last_lines: list[str]) -> CheckLine:
    return CheckLine(step=step.name, claim=f"{step.name} {what}", status="failed", reason=reason, last_lines=last_lines)


def with_mpi() -> str:
    return ", ".join(flavour.name for flavour in flavours.all_with_mpi())
