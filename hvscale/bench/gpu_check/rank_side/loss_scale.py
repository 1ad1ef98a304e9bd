"""Prints the loss scale in a checkpoint of `hvscale train`, as JSON.

Usage: python -m ...rank_side.loss_scale CHECKPOINT
"""

import io
import json
import sys
from pathlib import Path

import torch


def main() -> None:
    _, _, content = Path(sys.argv[1]).read_bytes().partition(b"\n")  # the first line is a checksum
    scaler = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)["scaler"]
    print(json.dumps({"scale": float(scaler["scale"])}))


if __name__ == "__main__":
    main()
