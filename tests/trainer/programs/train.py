"""Trains with the options in the first argument (JSON).

"disk_bytes" limits rank 0's file size, and "on_rank_1" holds other options of rank 1.
"""

import json
import os
import resource
import sys

from hvscale.core.errors import HvscaleError
from hvscale.trainer import TrainConfig, train

options = json.loads(sys.argv[1])
limit = options.pop("disk_bytes", None)
of_rank_1 = options.pop("on_rank_1", {})
if os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
    options |= of_rank_1
if limit and os.environ.get("OMPI_COMM_WORLD_RANK") == "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    train(TrainConfig.of(**options))
except HvscaleError as error:
    print(f"hvscale: {error}", file=sys.stderr, flush=True)
    sys.exit(error.exit_status)
