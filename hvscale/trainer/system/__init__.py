"""What the trainer sets in the process and on the machine: threads, memory, precision, signals."""
