"""How the controller watches a job: its processes, output, signals and time limits."""
