"""Defaults of our trainer that other rooms need to know."""

BATCH_SIZE = 16  # patches or images in a batch of one rank

# Set for the libraries where the CPU computes, unless the user has: a thread that waits for
# messages takes a core from the step. MPI yields, and Horovod looks every 5 ms instead of every 1
# ms. A step of EDSR-baseline on two ranks and two cores then takes 152 ms, without 235 ms
# (benchmarks/RESULTS.md).
ON_CPU = {"OMPI_MCA_mpi_yield_when_idle": "true", "HOROVOD_CYCLE_TIME": "5"}
