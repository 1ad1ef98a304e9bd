"""VGG-16 (Simonyan and Zisserman, 2015), torchvision's."""

from hvscale.models.registry import register_torchvision

register_torchvision("vgg16")
