"""Starts child processes after the rank's first message, like a data loader: a forked one that uses
MPI, and one that executes another program.
"""

import os
import subprocess
import sys

from mpi4py import MPI

MPI.COMM_SELF.Barrier()
child = os.fork()
if child == 0:
    for _ in range(100):
        MPI.COMM_SELF.Barrier()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
subprocess.run([sys.executable, "-c", "pass"], check=True)
MPI.COMM_SELF.Barrier()
