"""One rank: the GPUs that it sees, before it uses any.

Usage: python -m ...rank_side.devices [LIBRARY_VARIABLE]
"""

import os
import sys

import torch

from hvscale.bench.gpu_check.rank_side.results import place, write_result


def main() -> None:
    count = torch.cuda.device_count()
    properties = [torch.cuda.get_device_properties(number) for number in range(count)]
    write_result(
        place()[1],
        {
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "library": os.environ.get(sys.argv[1]) if len(sys.argv) > 1 else None,
            "count": count,
            "ids": [str(getattr(one, "uuid", one.name)) for one in properties],
        },
    )


if __name__ == "__main__":
    main()
