"""The model: Horovod's scheduling of a job's gradients, with the cost of each collective."""
