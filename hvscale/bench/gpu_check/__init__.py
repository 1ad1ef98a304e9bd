"""`hvscale check-gpu`: everything that needs a GPU, in steps with a time limit each."""
