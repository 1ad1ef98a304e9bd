"""Virtual environments with a small package `torch`, which stand for a site's PyTorch."""

import subprocess
import sys
from pathlib import Path

TORCH = """
from torch import version
__version__ = version.__version__
def compiled_with_cxx11_abi():
    return True
"""
VERSION_FILE = "from typing import Optional\n__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = None\n"
HEADER = "#error C++{standard} or later compatible compiler is required to use ATen.\n"


def make_site(folder: Path, version: str = "2.6.0+cu124", standard: int | None = 17) -> Path:
    """Make a virtual environment with a package `torch`; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    torch = packages / "torch"
    (torch / "include" / "ATen").mkdir(parents=True)
    (torch / "__init__.py").write_text(TORCH)
    (torch / "version.py").write_text(VERSION_FILE.format(version=version))
    if standard is not None:
        (torch / "include" / "ATen" / "ATen.h").write_text(HEADER.format(standard=standard))
    return folder / "bin" / "python"
