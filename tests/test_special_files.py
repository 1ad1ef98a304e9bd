"""Files that users name in options: a FIFO would block, and a device has no end."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hvscale.bench.experiments.experiment_file import read
from hvscale.comm_tuning.collectives.tables.table import read_table
from hvscale.comm_tuning.knobs.settings_file import read_settings
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import write_text
from hvscale.trainer.data.images import image_size


@pytest.mark.parametrize("reader", [read_settings, read_table, read, image_size])
@pytest.mark.parametrize("kind", ["a FIFO", "a device"])
def test_only_regular_files_are_read(tmp_path: Path, reader: Callable[[Path], object], kind: str) -> None:
    file = tmp_path / "file.toml"
    if kind == "a FIFO":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(RequestError, match="not a regular file"):
        reader(file)


@pytest.mark.parametrize("name", ["n" * 255, "写真" * 42])
def test_a_name_as_long_as_the_file_system_allows_is_written(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "whole")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "whole")]
