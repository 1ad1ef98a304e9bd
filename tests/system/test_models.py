"""`hvscale models`: its table, JSON and CSV."""

import csv
import json
from pathlib import Path

from tests.conftest import Run


def test_table_json_and_csv_agree(hvscale: Run, hvscale_warm: Run, tmp_path: Path) -> None:
    done = hvscale("models", "--json", "--csv", "models.csv")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "hvscale/models/1"
    found = {(row["name"], row["scale"]): row for row in document["models"]}
    assert set(found) == {
        *((name, scale) for name in ("edsr", "edsr-baseline") for scale in (2, 3, 4)),
        ("resnet50", None),
        ("vgg16", None),
    }
    assert found["edsr-baseline", 2]["parameters"] == 1_369_859
    with (tmp_path / "models.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert [int(line["gradient_bytes"]) for line in lines] == [row["gradient_bytes"] for row in document["models"]]
    table = hvscale_warm("models", "edsr-baseline").stdout
    assert "1,369,859" in table
    assert "5.23 MiB" in table


def test_user_model_and_unknown_model(hvscale_warm: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef net(num_classes=2): return nn.Conv2d(3, num_classes, 1)\n"
    )
    done = hvscale_warm("models", "mine:net", "--json")
    assert [row["parameters"] for row in json.loads(done.stdout)["models"]] == [8], done.stderr
    done = hvscale_warm("models", "resnet-9000")
    assert done.returncode == 2
    assert done.stderr.startswith("hvscale: resnet-9000: unknown model; did you mean ")
    assert len(done.stderr.splitlines()) == 1
