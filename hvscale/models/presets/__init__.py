"""The project's own models: each is one file that registers itself, without importing
torchvision.
"""
