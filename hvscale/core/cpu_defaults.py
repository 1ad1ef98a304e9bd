"""What our trainer sets for the libraries where the CPU computes, unless the user has: who waits for messages takes cores from the step.

MPI is to give way, Horovod to look every 5 ms, not every one. A step of EDSR-baseline on two ranks and two cores takes 152 ms so,
235 ms without (benchmarks/RESULTS.md).
"""

ON_CPU = {"OMPI_MCA_mpi_yield_when_idle": "true", "HOROVOD_CYCLE_TIME": "5"}
