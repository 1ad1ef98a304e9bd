"""ResNet-50 (He et al., 2016), torchvision's."""

from hvscale.models.registry import register_torchvision

register_torchvision("resnet50")
