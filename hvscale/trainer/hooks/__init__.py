"""Actions around the training step: each hook is one file and knows nothing of the others."""
