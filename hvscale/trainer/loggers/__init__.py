"""Logs training runs to Weights & Biases and TensorBoard from processes beside rank 0."""
