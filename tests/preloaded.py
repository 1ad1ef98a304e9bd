"""Run `hvscale` in forked processes that have its modules and torch loaded, because importing them
takes longer than most commands.

multiprocessing's fork server imports them once per test worker and forks a process for each call,
with its own arguments, environment, working folder, output and exit status.
"""

import atexit
import multiprocessing
import os
import pkgutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from hvscale.cli import commands
from hvscale.cli.main import main

# Without cached bytecode every rank takes twice as long to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
COMMAND = Path(sys.prefix) / "bin" / "hvscale"
# A forked sub-command takes 0.04 s of CPU time and more, and an installed one 0.12 s and more. The
# doctor checks the installation, and so always runs as installed.
FORKED = tuple(
    found.name.replace("_", "-") for found in pkgutil.iter_modules(commands.__path__) if found.name != "doctor"
)
FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(
    [
        *("hvscale.trainer.training", "hvscale.trainer.inference.evaluate", "torchvision.models", "scipy.ndimage"),
        *("hvscale.prediction.predict", "hvscale.prediction.page", "hvscale.report.page", "plotly.graph_objects"),
        *("hvscale.profiling.compare", "hvscale.comm_tuning.tune.study", "hvscale.studies.scaling.study", "optuna"),
        *(f"{commands.__name__}.{command.replace('-', '_')}" for command in FORKED),
        *("hvscale.launch.controller", "scipy.special"),
    ]
)
# multiprocessing polls all its processes when one starts; two threads must not poll one at once.
POLLED = threading.Lock()
OUTPUTS = ("stdout", "stderr")
# Variables that Python or the dynamic linker reads when a process starts, or only once.
READ_AT_START = ("LANG", "LC_", "LD_", "MALLOC_", "OMP_", "OPENBLAS_", "PYTHON", "TMPDIR", "TORCH")


def can_apply(environment: Mapping[str, str]) -> bool:
    """Whether a forked process applies these variables.

    It does not apply those that are read when a process starts, unless this process has them too:
    libraries set some when they are loaded, such as PyTorch TORCHINDUCTOR_CACHE_DIR.
    """
    return all(os.environ.get(name) == value for name, value in environment.items() if name.startswith(READ_AT_START))


def run(
    arguments: list[str], folder: Path, environment: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run `hvscale`. After `timeout` seconds, kill it and raise subprocess.TimeoutExpired."""
    assert can_apply(environment), "only the installed command applies these variables"
    with TemporaryDirectory() as outputs:
        process = start(arguments, folder, environment, Path(outputs))
        status = wait(process, timeout)
        if status is None:
            process.kill()
            raise subprocess.TimeoutExpired(arguments, timeout)
        texts = [(Path(outputs) / name).read_text() for name in OUTPUTS]
        return subprocess.CompletedProcess(arguments, status, *texts)


def start(arguments: list[str], folder: Path, environment: dict[str, str], outputs: Path) -> BaseProcess:
    """Start `hvscale`, which writes its output to `stdout` and `stderr` in the folder `outputs`."""
    process = FORK_SERVER.Process(target=_call, args=(arguments, folder, environment, outputs))
    with POLLED:
        process.start()
    return process


def wait(process: BaseProcess, seconds: float) -> int | None:
    """Wait for the end and return the exit status; None if it takes longer."""
    connection.wait([process.sentinel], seconds)
    with POLLED:
        return process.exitcode


def _call(arguments: list[str], folder: Path, environment: dict[str, str], outputs: Path) -> None:
    """Run the command in the forked process. Raises SystemExit as the command does."""
    # PyTorch's finalizers would make copies of 40 MB of memory that forked processes share.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    for number, name in enumerate(OUTPUTS, start=1):
        descriptor = os.open(outputs / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [str(COMMAND), *arguments]
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # multiprocessing ends the process without them
