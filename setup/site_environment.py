"""A virtual environment that uses a site's PyTorch, and changes nothing there.

<environment>/hvscale-site.json                       the site that it was made for
<environment>/lib/python3.N/site-packages/hvscale-site.pth   the site's folders of packages

A .pth file works for an interpreter that is itself a virtual environment, and without the site's
PYTHONPATH, where --system-site-packages would not. Packages of this environment come first.
"""

import json
import re
import shutil
import sys
from pathlib import Path

from environment import Environment
from logged_run import SetUpError, say
from site_python import SITE_PACKAGES, SitePython

MARKER = "hvscale-site.json"
PATH_FILE = "hvscale-site.pth"


def is_site_environment(folder: Path) -> bool:
    """Return whether the set-up made this environment on a site's PyTorch."""
    return (folder / MARKER).exists() or any(folder.glob(f"lib/python3*/site-packages/{PATH_FILE}"))


class SiteEnvironment(Environment):
    """An environment for the set-up's `TORCH=site`."""

    def __init__(self, clone: Path, name: str, uv: Path, site: SitePython) -> None:
        """Raises SetUpError if the site's interpreter is the one of this environment."""
        super().__init__(clone, name, uv)
        self.site = site
        self.existed = self.folder.exists()
        if Path(sys.prefix).resolve() == self.folder.resolve():
            raise SetUpError(
                f"TORCH=site needs the site's interpreter, but {site.program} is the one in {name}: type deactivate first, "
                "or give PYTHON=/path/to/python"
            )

    def sync(self, groups: list[str], *, keep_extra: bool) -> None:
        """Install the locked packages, except those that the site's PyTorch brings.

        keep_extra: do not recreate the environment.
        """
        if self.folder.exists() and not (keep_extra and self.is_current()):
            say(f"recreating {self.folder.name} for the PyTorch of {self.site.program}")
            self.installing.touch()  # a kill from here on leaves an incomplete environment
            shutil.rmtree(self.folder)
        if not self.folder.exists():
            say(f"installing the Python packages beside PyTorch {self.site.torch.version} of {self.site.program}")
            self.create()
        self.install_locked(groups)
        self.install("--no-deps", "--editable", str(self.clone))
        (self.folder / MARKER).write_text(description(self.site))

    def create(self) -> None:
        """Create the environment with the site's folders in its path."""
        self.run_uv("venv", "--quiet", "--python", str(self.site.program), str(self.folder))
        add_site_folders(self.folder, self.site)

    def install_locked(self, groups: list[str]) -> None:
        """Install the locked packages by name, version and hash.

        uv does not see the site's packages, so those that it must not install are left out by name.
        """
        requirements = self.log.with_suffix(".requirements.txt")
        from_site = [name for name in SITE_PACKAGES if name in self.site.versions]
        missing = [name for name in SITE_PACKAGES if name not in self.site.versions]
        # torchvision's wheels work with one PyTorch only, not with the site's.
        pruned = {"torch", "torchvision", *from_site}
        if "torchvision" in missing:
            say(
                "no matching torchvision beside this PyTorch, so ResNet-50, VGG-16 and its other models cannot be trained"
            )
        excluded = ["--no-emit-project", "--no-emit-package", "horovod"]
        prune = [word for name in sorted(pruned) for word in ("--prune", name)]
        selection = self.selection(groups)
        self.run_uv("export", "--frozen", "--quiet", *excluded, *prune, *selection, "--output-file", str(requirements))
        self.install("--no-deps", "--require-hashes", "--requirement", str(requirements))

    def is_current(self) -> bool:
        """Return whether the environment was made for this site."""
        try:
            return (self.folder / MARKER).read_text() == description(self.site)
        except OSError:
            return False

    def discard_if_new(self) -> None:
        """Remove an environment that this set-up created and could not complete."""
        if not self.existed:
            shutil.rmtree(self.folder, ignore_errors=True)


def add_site_folders(environment: Path, site: SitePython) -> None:
    """Add the site's folders to the path of an environment."""
    packages = next(environment.glob("lib/python3*/site-packages"))
    (packages / PATH_FILE).write_text("".join(f"{folder}\n" for folder in site.folders))


def description(site: SitePython) -> str:
    """What an environment on a site's PyTorch depends on, as JSON."""
    found = {
        "python": str(site.program),
        "python_version": re.split(r"[ (]", sys.version)[0],
        "folders": [str(folder) for folder in site.folders],
        "versions": site.versions,
        "torch": str(site.torch.folder),
    }
    return json.dumps(found, indent=2) + "\n"
