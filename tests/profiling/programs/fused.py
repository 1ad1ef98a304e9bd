"""Sends Horovod messages of known sizes, some fused from several tensors."""

import time

import horovod.torch as hvd
import torch

hvd.init()
hvd.allreduce(torch.ones(100_000), name="alone")
hvd.grouped_allreduce([torch.ones(100), torch.ones(200_000, 3), torch.ones(5)], name="group")
hvd.allgather(torch.ones(2 + hvd.rank(), 4, dtype=torch.float64), name="gathered")
hvd.broadcast(torch.ones(7), 0, name="sent")
hvd.reducescatter(torch.ones(6, 3), name="scattered")
hvd.barrier()
time.sleep(0.5)  # at shutdown Horovod drops timeline events that it has not yet written
hvd.shutdown()
