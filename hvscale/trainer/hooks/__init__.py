"""What runs beside the training loop: one hook per file; `Hook` stands beside the Trainer."""
