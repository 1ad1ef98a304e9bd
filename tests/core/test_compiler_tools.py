"""torch.compile on a machine that lacks a program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
if "loaded" in sys.argv:
    import torch._inductor.config
from hvscale.core.compiler_tools import compile_without_openssl
compile_without_openssl()
import torch._inductor.config
print(torch._inductor.config.cpp_cache_precompile_headers)
"""


@pytest.mark.parametrize("when", ["loaded", "later"])
def test_headers_are_precompiled_only_with_openssl(tmp_path: Path, when: str) -> None:
    """PyTorch runs `openssl` to precompile headers, and fails without it."""
    words = [sys.executable, "-c", PROGRAM, when]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR_")}
    answers = []
    for _ in range(2):
        environment = inherited | {"PATH": str(tmp_path)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        answers.append(done.stdout.strip())
        (tmp_path / "openssl").write_text("#!/bin/sh\n")
        (tmp_path / "openssl").chmod(0o755)
    assert answers == ["False", "True"]
