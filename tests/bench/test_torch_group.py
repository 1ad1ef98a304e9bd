"""PyTorch's process group as a back end: closing it ends all its threads."""

import os
import subprocess
import sys
from pathlib import Path

# Runs in a separate process, because it counts the threads.
OPEN_AND_CLOSE = """
import os
import torch.distributed
from hvscale.bench.collectives.backends.torch_distributed import TorchGroup

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
group = TorchGroup("gloo")
assert group.broadcast_from_root({"agreed": 1}) == {"agreed": 1}
assert threads() > before
group.close()
assert threads() == before, (threads(), before)
"""


def test_closing_the_group_ends_its_threads(tmp_path: Path) -> None:
    alone = {**os.environ, "HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "HVSCALE_RUN": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", OPEN_AND_CLOSE], env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
