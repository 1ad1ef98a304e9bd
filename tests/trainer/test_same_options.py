"""Real ranks with different options end with one line that names the option, instead of a hang."""

import json
from pathlib import Path

import pytest

from hvscale.trainer import TrainConfig
from hvscale.trainer.training import shared_options
from tests.trainer.conftest import BIN, run_on_two_ranks

TRAIN = (
    *("train", "edsr-baseline", "--n-resblocks", "1", "--n-feats", "8", "--batch-size", "2", "--patch-size", "16"),
    *("--precision", "fp32", "--memory-format", "contiguous", "--threads", "1", "--data", "synthetic", "--steps", "4"),
)
DIFFERENT = (
    (("--batch-size", "4"), "--batch-size is 4 on rank 1 and 2 on rank 0: start all ranks with the same options"),
    (("--n-feats", "16"), "--n-feats is 16 on rank 1 and 8 on rank 0: start all ranks with the same options"),
    (("--cache-gb", "5"), "--cache-gb does not apply to --data synthetic: leave it out"),
    (("--resume", "none"), "--resume is a checkpoint on rank 1 and None on rank 0: start all ranks with"),
)
# Each rank runs the command once for each of them; the last one ends the process.
PROGRAM = f"""
import os, sys
from hvscale.cli.main import main

different = {[more for more, _ in DIFFERENT]}
rank, words = os.environ["OMPI_COMM_WORLD_RANK"], sys.argv[1:]
for more in different:
    sys.argv = [*words, *(more if rank == "1" else [])]
    try:
        main()
    except SystemExit as end:
        if more == different[-1]:
            raise
        print("rank", rank, "ends with", end.code, flush=True)
"""


@pytest.mark.ranks
def test_ranks_with_different_options_end_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_on_two_ranks(tmp_path, str(tmp_path / "program.py"), BIN / "hvscale", *TRAIN, "--run", "job")
    assert done.returncode == 2, done.stdout + done.stderr
    printed = [f"rank {rank} ends with 2" for rank in range(2) for _ in DIFFERENT[:-1]]
    assert sorted(done.stdout.splitlines()) == printed
    for _, message in DIFFERENT:
        assert done.stderr.count(f"hvscale: {message}") == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "job").exists()


def test_options_about_a_rank_s_own_host_may_differ() -> None:
    one = TrainConfig.of(data="/a", threads=1, run=Path("a"), cache_dir=Path("a"), resume="a", workers=0)
    other = TrainConfig.of(data="/b", threads=2, run=Path("b"), weights=Path("b"), resume="b")
    assert shared_options(one) == shared_options(other)
    assert shared_options(TrainConfig.of(data="synthetic")) != shared_options(other)
    assert json.dumps(shared_options(one))
