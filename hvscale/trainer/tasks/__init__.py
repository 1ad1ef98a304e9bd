"""What is trained: super-resolution and image classification."""
