"""A virtual environment: made from uv.lock, with Horovod's wheel put in beside what uv knows."""

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from logged_run import run_logged
from messages import SetUpError, say
from registry import mirror, registry_variables


class Environment:
    """A virtual environment of one clone, and beside it a folder with the set-up's own notes on
    it.
    """

    def __init__(self, clone: Path, name: str, uv: Path) -> None:
        self.clone = clone
        self.folder = clone / name
        self.uv = uv
        self.notes = clone / f"{name}-setup"
        self.log = self.notes / "uv.log"

    @contextmanager
    def held_by_this_set_up(self) -> Iterator[None]:
        """Let one set-up at a time work on this clone; start anew when the last one was killed
        while it installed.
        """
        self.notes.mkdir(exist_ok=True)
        with (self.notes / "lock").open("w") as lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("another set-up is at work in this clone: waiting for it")
                fcntl.lockf(lock, fcntl.LOCK_EX)
            if self.installing.exists():
                say(f"the last set-up was cut off while it installed: making {self.folder.name} anew")
                shutil.rmtree(self.folder, ignore_errors=True)
                self.installing.unlink()
            yield

    @property
    def installing(self) -> Path:
        """The note that is there while uv changes the environment, and stays when it is cut off."""
        return self.notes / "installing"

    def sync(self, groups: list[str], *, keep_others: bool) -> None:
        """Install what uv.lock pins for the project, the groups and the demo's photos;
        `keep_others` keeps what is there besides.
        """
        wanted = ["--extra", "photos", *(word for group in groups for word in ("--group", group))]
        if not keep_others:
            say("installing the Python packages, 3 GB to fetch the first time")
        if mirror():
            self.sync_from_mirror(wanted)
        else:
            inexact = ["--inexact"] if keep_others else []
            never_built_by_uv = ["--no-install-package", "horovod"]
            self.run_uv("sync", "--locked", *inexact, *wanted, *never_built_by_uv, "--python", sys.executable)

    def sync_from_mirror(self, wanted: list[str]) -> None:
        """uv.lock holds the usual registry's addresses: give uv names, versions and hashes only."""
        requirements = self.log.with_suffix(".requirements.txt")
        self.run_uv("venv", "--allow-existing", "--quiet", "--python", sys.executable, str(self.folder))
        leave_out = ["--no-emit-project", "--no-emit-package", "horovod"]
        self.run_uv("export", "--frozen", "--quiet", *leave_out, *wanted, "--output-file", str(requirements))
        self.install("--require-hashes", "--requirement", str(requirements))
        self.install("--no-deps", "--editable", str(self.clone))

    def install_horovod(self, wheel: Path) -> None:
        """Put the built wheel in; its dependencies are there already, from the lock."""
        self.install("--no-deps", "--reinstall-package", "horovod", str(wheel))

    def installed_horovod(self) -> str | None:
        """The address of the wheel that the environment's Horovod was installed from."""
        for record in self.folder.glob("lib/python3*/site-packages/horovod-*.dist-info/direct_url.json"):
            return str(json.loads(record.read_text())["url"])
        return None

    def install(self, *arguments: str) -> None:
        """Run `uv pip install` on this environment and no other, whatever UV_SYSTEM_PYTHON says."""
        self.run_uv("pip", "install", "--python", str(self.folder / "bin" / "python"), *arguments)

    def run_uv(self, *arguments: str) -> None:
        """Run uv on this environment, never letting it fetch another Python."""
        # make's own flags would reach the make that builds hvscale's C parts.
        inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
        environment = {
            **inherited,
            **registry_variables(),
            "UV_PROJECT_ENVIRONMENT": str(self.folder),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_PROGRESS": "1",
        }
        self.installing.touch()
        try:
            run_logged("installing the Python packages", [str(self.uv), *arguments], self.log, environment, self.clone)
        except SetUpError:
            self.installing.unlink()  # uv ended by itself and leaves whole packages only
            raise
        self.installing.unlink()
