"""Runs in a rank: measures every collective of a back end with every type, in and out of place.

Rank 0 prints a line of JSON for each. Arguments: the back end, then one or more block sizes in
elements.
"""

import gc
import json
import sys

from hvscale.bench.collectives import backends, elements
from hvscale.bench.collectives.operations import COLLECTIVES
from hvscale.bench.collectives.rank_side.engine import Engine, Operands
from hvscale.bench.collectives.rank_side.rank import measure_size
from hvscale.bench.collectives.request import BenchRequest, RequestedSize

gc.disable()  # as ranks of `hvscale bench`
backend = backends.find_backend(sys.argv[1])
engine: Engine | None = None
for name in sorted(backend.collectives):
    collective = COLLECTIVES.get(name)
    for dtype in backend.dtypes if collective.has_data else ("float32",):
        for count in map(int, sys.argv[2:]):
            size = RequestedSize(bytes=0, count=count, iterations=2, warmup=1)
            request = BenchRequest(
                collective=name,
                backend=backend.name,
                path="host",
                dtype=dtype,
                device="cpu",
                root=1,
                in_place="both",
                check=True,
                until_interval=None,
                sizes=[size],
            )
            engine = engine or backend.open(request)
            kind = elements.find_dtype(dtype)
            send, receive = (
                engine.buffer("cpu", collective.blocks_in_buffer(engine.np) * count * kind.bytes) for _ in range(2)
            )
            for in_place in backends.in_place_modes(backend, name, "both"):
                operands = Operands(collective, kind, count, engine.rank, engine.np, 1, in_place, send, receive)
                measured = measure_size(engine, operands, size, request)
                if engine.rank == 0:
                    print(json.dumps({"collective": name, "dtype": dtype, **measured.model_dump()}), flush=True)
if engine is not None:
    engine.close()
gc.freeze()
