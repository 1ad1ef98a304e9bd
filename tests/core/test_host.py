"""What run.json says of the machine."""

import subprocess
import sys

import pytest

from hvscale.core.host import scheduling

ASK = [sys.executable, "-c", "from hvscale.core.host import scheduling; print(scheduling())"]


def test_the_scheduling_of_the_ranks_is_that_of_hvscale() -> None:
    assert scheduling() == "default"
    for option, name in (("--batch", "batch"), ("--rr", "round-robin")):
        done = subprocess.run(["chrt", option, "1" if option == "--rr" else "0", *ASK], capture_output=True, text=True)
        if "failed to set" in done.stderr:
            pytest.skip("a real-time priority needs root")
        assert done.stdout.strip() == name, done.stderr
