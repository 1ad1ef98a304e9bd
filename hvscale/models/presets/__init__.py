"""The project's own models. Each file registers one, without importing torchvision."""
