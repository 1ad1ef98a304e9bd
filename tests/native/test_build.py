"""Builds the libraries: new compiler warnings must not break an installation."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native import NATIVE

# Stands for a new warning about correct code: warns about every structure with padding.
EXTRA_WARNING = "-DCMAKE_C_FLAGS=-Wpadded"
AS_ERRORS = "-DHVSCALE_WARNINGS_AS_ERRORS=ON"


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Builds all libraries as an installation does."""
    cmake = shutil.which("cmake") or shutil.which("cmake", path=str(Path(sys.executable).parent))
    if cmake is None:
        pytest.skip("CMake is not installed")
    python = f"-DPython_EXECUTABLE={sys.executable}"
    configured = [cmake, "-S", str(NATIVE.parent), "-B", str(folder), python, *options]
    subprocess.run(configured, check=True, capture_output=True)
    return subprocess.run([cmake, "--build", str(folder)], capture_output=True, text=True, check=False)


def test_libraries_build_without_warnings(tmp_path: Path) -> None:
    done = build(tmp_path, AS_ERRORS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("lib*.so"))) == 8
    assert (tmp_path / "hvrank").exists()


def test_a_new_warning_does_not_break_an_installation(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nexec "$@" -O0\n')  # optimising takes most of the time
    compiler.chmod(0o755)
    done = build(tmp_path / "build", EXTRA_WARNING, f"-DCMAKE_C_COMPILER_LAUNCHER={compiler}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning: padding struct" in done.stderr


def test_a_new_warning_is_an_error_on_request(tmp_path: Path) -> None:
    done = build(tmp_path, EXTRA_WARNING, AS_ERRORS)
    assert done.returncode != 0
    assert "error: padding struct" in done.stderr
