"""What torch.compile needs of a machine."""

import os
import shutil
import sys

PRECOMPILE_HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"


def compile_without_openssl() -> None:
    """Let torch.compile build CPU kernels on a machine that has no `openssl` program.

    PyTorch runs it only to precompile headers, which saves time.
    """
    if shutil.which("openssl") is not None:
        return
    os.environ.setdefault(PRECOMPILE_HEADERS, "0")
    loaded = sys.modules.get("torch._inductor.config")  # it has read the variable already
    if loaded is not None and hasattr(loaded, "cpp_cache_precompile_headers"):
        name = "cpp_cache_precompile_headers"  # not in the stubs of every release
        setattr(loaded, name, os.environ[PRECOMPILE_HEADERS] == "1")
