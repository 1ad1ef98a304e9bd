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
WRAPPER = """
import os, sys
more = sys.argv[1:sys.argv.index("--")] if os.environ["OMPI_COMM_WORLD_RANK"] == "1" else []
words = sys.argv[sys.argv.index("--") + 1:]
os.execv(words[0], [*words, *more])
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--batch-size", "4"), "--batch-size is 4 on rank 1 and 2 on rank 0: start all ranks with the same options"),
        (("--n-feats", "16"), "--n-feats is 16 on rank 1 and 8 on rank 0: start all ranks with the same options"),
        (("--resume", "none"), "--resume is a checkpoint on rank 1 and None on rank 0: start all ranks with"),
    ],
)
def test_ranks_with_different_options_end_in_one_line(tmp_path: Path, more: tuple[str, ...], message: str) -> None:
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    done = run_on_two_ranks(
        tmp_path, str(tmp_path / "wrapper.py"), *more, "--", BIN / "hvscale", *TRAIN, "--run", "job"
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count(f"hvscale: {message}") == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "job").exists()


def test_options_about_a_rank_s_own_host_may_differ() -> None:
    one = TrainConfig.of(data="/a", threads=1, run=Path("a"), cache_dir=Path("a"), resume="a", workers=0)
    other = TrainConfig.of(data="/b", threads=2, run=Path("b"), weights=Path("b"), resume="b")
    assert shared_options(one) == shared_options(other)
    assert shared_options(TrainConfig.of(data="synthetic")) != shared_options(other)
    assert json.dumps(shared_options(one))
