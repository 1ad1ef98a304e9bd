"""Finding models by name: torchvision's, and users' own functions."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.models.cost import model_rows

USER_MODULE = """
from torch import nn

def small(num_classes=10, width=4):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes))

def enlarger(scale=2):
    return nn.Upsample(scale_factor=scale)

def unknown_task():
    return nn.Identity()

def no_module(num_classes=3):
    return "resnet"

def for_32_pixels(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes))

def without_default(num_classes):
    return nn.Linear(224, num_classes)

def with_depth(depth, scale=2):
    return nn.Upsample(scale_factor=scale)

def lazy(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with a different name for each test, because Python imports a name once."""
    name = f"own_{tmp_path.name}".replace("-", "_").replace("[", "_").replace("]", "_")
    (tmp_path / f"{name}.py").write_text(USER_MODULE)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize(
    "name", ["resnet50", "vgg16", "densenet121", "inception_v3", "regnet_x_400mf", "vit_b_16", "efficientnet_b3"]
)
def test_parameters_and_flops_match_torchvision_s_published_figures(name: str) -> None:
    import torchvision.models  # takes seconds, and every test worker imports this file

    (row,) = model_rows(name)
    published = torchvision.models.get_model_weights(name)["IMAGENET1K_V1"].meta
    assert row.parameters == published["num_params"]
    assert row.forward_flops / 2e9 == pytest.approx(published["_ops"], rel=2e-3)


@pytest.mark.parametrize(("name", "tensors", "gradient_mebibytes"), [("resnet50", 161, 97.5), ("vgg16", 32, 528)])
def test_gradient_count_and_size_of_the_studies_classifiers(name: str, tensors: int, gradient_mebibytes: float) -> None:
    (row,) = model_rows(name)
    assert row.gradient_tensors == tensors
    assert row.gradient_bytes / 2**20 == pytest.approx(gradient_mebibytes, rel=1e-3)


def test_torchvision_model_with_another_number_of_classes() -> None:
    model = models.build("squeezenet1_1", num_classes=7)
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 7)
    assert models.find("squeezenet1_1").task == "classification"
    with pytest.raises(RequestError, match="squeezenet1_1 has no option 'scale': it has num_classes"):
        models.build("squeezenet1_1", scale=2)


def test_user_function(user_module: str) -> None:
    assert models.find(f"{user_module}:small").task == "classification"
    assert models.build(f"{user_module}:small", num_classes=5)(torch.zeros(1, 3, 8, 8)).shape == (1, 5)
    assert models.find(f"{user_module}:enlarger").task == "super-resolution"
    assert models.build(f"{user_module}:enlarger", scale=3)(torch.zeros(1, 3, 8, 8)).shape == (1, 3, 24, 24)
    (row,) = model_rows(f"{user_module}:small")
    assert row.parameters == 4 * 27 + 4 + 4 * 10 + 10
    assert [(row.parameters, row.gradient_bytes) for row in model_rows(f"{user_module}:enlarger")] == 3 * [(0, 0)]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("absent", "has no function 'absent'"),
        ("unknown_task", r"must take an argument `scale` \(super-resolution\) or `num_classes`"),
        ("no_module", r"returned a str, not a torch\.nn\.Module"),
        ("with_depth", r"cannot be called with \(\): missing a required argument: 'depth'"),
        ("lazy", "has lazy layers without weights: pass a batch through the model"),
    ],
)
def test_function_that_makes_no_model(user_module: str, function: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        models.build(f"{user_module}:{function}")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("for_32_pixels", ": no cost for .* 224x224 pixels: RuntimeError: .*"),
        ("without_default", r" cannot be called with \(\): missing a required argument: 'num_classes'"),
    ],
)
def test_a_cost_that_cannot_be_computed_is_one_line(user_module: str, function: str, message: str) -> None:
    with pytest.raises(RequestError, match=rf"^{user_module}:{function}{message}$"):
        model_rows(f"{user_module}:{function}")


def test_unknown_name_suggests_torchvision_models_too() -> None:
    with pytest.raises(RequestError, match=r"desnet121: unknown model; did you mean densenet121\? Known: edsr, "):
        models.find("desnet121")


@pytest.mark.ranks
def test_own_models_are_found_without_importing_torchvision() -> None:
    names = ["edsr", "edsr-baseline", "resnet50", "vgg16"]
    finds = "".join(f"models.find('{name}'); print('{name}', 'torchvision' in sys.modules)\n" for name in names)
    code = f"import sys; from hvscale import models\n{finds}"
    done = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert done.splitlines() == [f"{name} False" for name in names]


def test_module_that_cannot_be_imported() -> None:
    with pytest.raises(
        RequestError, match=r"^no_such_module:model: no_such_module cannot be imported: ModuleNotFoundError"
    ):
        models.build("no_such_module:model")


def test_module_that_exits_when_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_script.py").write_text("import argparse\nargparse.ArgumentParser().exit(3)")
    with pytest.raises(RequestError, match=r"^own_script:model: own_script cannot be imported: SystemExit\(3\)$"):
        models.build("own_script:model")


def test_each_layer_returns_to_its_own_mode() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm2d(3).eval())
    with models.evaluation_mode(model):
        assert not any(layer.training for layer in model.modules())
    assert [layer.training for layer in model.modules()] == [True, True, False]
