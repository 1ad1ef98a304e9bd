"""torch.compile on a machine that lacks a program."""

import os
import subprocess
import sys
from pathlib import Path

# A forked process for each answer, so that PyTorch and its compiler are loaded once.
PROGRAM = """
import os, sys, torch
from hvscale.core.compiler_tools import compile_without_openssl
def answer(when):
    for path in sys.argv[1:]:
        if os.fork() == 0:
            os.environ["PATH"] = path
            assert ("torch._inductor.config" in sys.modules) == (when == "loaded")
            compile_without_openssl()
            import torch._inductor.config
            print(when, torch._inductor.config.cpp_cache_precompile_headers, flush=True)
            os._exit(0)
        assert os.wait()[1] == 0
answer("later")
import torch._inductor.config
answer("loaded")
"""


def test_headers_are_precompiled_only_with_openssl(tmp_path: Path) -> None:
    """PyTorch runs `openssl` to precompile headers, and fails without it."""
    without, beside = tmp_path / "without", tmp_path / "with"
    without.mkdir()
    beside.mkdir()
    (beside / "openssl").write_text("#!/bin/sh\n")
    (beside / "openssl").chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR_")}
    words = [sys.executable, "-c", PROGRAM, str(without), str(beside)]
    done = subprocess.run(words, env=inherited, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["later False", "later True", "loaded False", "loaded True"]
