"""A virtual environment with the packages of uv.lock and a wheel of Horovod."""

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from logged_run import SetUpError, run_logged, say
from packages import mirror, registry_variables


class Environment:
    """A virtual environment of a clone, with a folder beside it for the set-up's lock and log."""

    def __init__(self, clone: Path, name: str, uv: Path) -> None:
        self.clone = clone
        self.folder = clone / name
        self.uv = uv
        self.state = clone / f"{name}-setup"
        self.log = self.state / "uv.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the environment; remove it first if a killed set-up left it half-installed."""
        self.state.mkdir(exist_ok=True)
        with (self.state / "lock").open("w") as lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("another set-up is running in this clone: waiting for it")
                fcntl.lockf(lock, fcntl.LOCK_EX)
            if self.installing.exists():
                say(f"the last set-up was killed while it installed packages: recreating {self.folder.name}")
                shutil.rmtree(self.folder, ignore_errors=True)
                self.installing.unlink()
            yield

    @property
    def installing(self) -> Path:
        """A marker file that exists while uv changes the environment, and stays if uv is killed."""
        return self.state / "installing"

    @staticmethod
    def selection(groups: list[str]) -> list[str]:
        """Return uv's options for the demo's photos and the groups."""
        return ["--extra", "photos", *(word for group in groups for word in ("--group", group))]

    def sync(self, groups: list[str], *, keep_extra: bool) -> None:
        """Install the locked packages of the project, the groups and the demo's photos.

        keep_extra: do not remove other packages.
        """
        selection = self.selection(groups)
        if not keep_extra:
            say("installing the Python packages (the first time: a download of 3 GB)")
        if mirror():
            self.sync_from_mirror(selection)
        else:
            inexact = ["--inexact"] if keep_extra else []
            without_horovod = ["--no-install-package", "horovod"]
            self.run_uv("sync", "--locked", *inexact, *selection, *without_horovod, "--python", sys.executable)

    def sync_from_mirror(self, selection: list[str]) -> None:
        """As `sync`, without the registry addresses in uv.lock: only names, versions and hashes."""
        requirements = self.log.with_suffix(".requirements.txt")
        self.run_uv("venv", "--allow-existing", "--quiet", "--python", sys.executable, str(self.folder))
        excluded = ["--no-emit-project", "--no-emit-package", "horovod"]
        self.run_uv("export", "--frozen", "--quiet", *excluded, *selection, "--output-file", str(requirements))
        self.install("--require-hashes", "--requirement", str(requirements))
        self.install("--no-deps", "--editable", str(self.clone))

    def install_horovod(self, wheel: Path) -> None:
        """Install the built wheel; `sync` has installed its dependencies."""
        self.install("--no-deps", "--reinstall-package", "horovod", str(wheel))

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    def installed_horovod(self) -> str | None:
        """Return the URL of the wheel from which Horovod was installed, or None."""
        for record in self.folder.glob("lib/python3*/site-packages/horovod-*.dist-info/direct_url.json"):
            return str(json.loads(record.read_text())["url"])
        return None

    def install(self, *arguments: str) -> None:
        """Run `uv pip install` in this environment, regardless of UV_SYSTEM_PYTHON."""
        self.run_uv("pip", "install", "--python", str(self.python), *arguments)

    def run_uv(self, *arguments: str) -> None:
        """Run uv in this environment; never let it download another Python."""
        # The make that builds hvscale's C code must not see the flags of `make setup`.
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
            self.installing.unlink()  # uv was not killed, so every package is complete
            raise
        self.installing.unlink()
