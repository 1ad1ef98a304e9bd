"""Defaults of the trainer that other rooms use."""

BATCH_SIZE = 16  # patches or images in a batch of one rank

# Set when training on CPUs, unless the user has set them: threads that wait for messages take cores
# from the step. MPI yields, and Horovod polls every 5 ms instead of every 1 ms. A step of
# EDSR-baseline on two ranks and two cores then takes 152 ms instead of 235 ms
# (benchmarks/RESULTS.md).
CPU_ENVIRONMENT = {"OMPI_MCA_mpi_yield_when_idle": "true", "HOROVOD_CYCLE_TIME": "5"}
