"""Evaluation and upscaling with a trained model."""
