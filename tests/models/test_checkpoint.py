"""Loading weights: all tensors must fit, or nothing is copied."""

from pathlib import Path

import pytest
import torch
from torch import nn

from hvscale import models
from hvscale.core.errors import RequestError


def small(scale: int = 2, n_feats: int = 4) -> nn.Module:
    return models.build("edsr-baseline", scale=scale, n_resblocks=1, n_feats=n_feats)


def saved(model: nn.Module, folder: Path) -> Path:
    file = folder / "model.pt"
    torch.save(model.state_dict(), file)
    return file


def equal(a: nn.Module, b: nn.Module, *, except_under: tuple[str, ...] = ()) -> bool:
    others = b.state_dict()
    return all(
        torch.equal(value, others[key])
        for key, value in a.state_dict().items()
        if not key.startswith(except_under or "-")
    )


def test_load_copies_everything(tmp_path: Path) -> None:
    source, target = small(), small()
    assert models.load(target, saved(source, tmp_path)) == []
    assert equal(source, target)


def test_weights_of_another_scale_are_rejected_and_nothing_is_copied(tmp_path: Path) -> None:
    target = small(scale=4)
    before = {key: value.clone() for key, value in target.state_dict().items()}
    with pytest.raises(RequestError, match=r"does not fit the model: tail\.0\.2\.bias is missing"):
        models.load(target, saved(small(scale=2), tmp_path))
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())


@pytest.mark.parametrize(
    ("scale", "kept"),
    [(4, ["tail.0.2.bias", "tail.0.2.weight"]), (3, ["tail.0.0.bias", "tail.0.0.weight"])],
)
def test_another_tail_is_allowed_on_request(tmp_path: Path, scale: int, kept: list[str]) -> None:
    source, target = small(scale=2), small(scale=scale)
    assert models.load(target, saved(source, tmp_path), allow_other_tail=True) == kept
    assert torch.equal(source.state_dict()["tail.1.weight"], target.state_dict()["tail.1.weight"])
    assert equal(source, target, except_under=("tail.0",))


def test_smaller_tail_takes_the_tensors_that_fit(tmp_path: Path) -> None:
    source, target = small(scale=4), small(scale=2)
    assert models.load(target, saved(source, tmp_path), allow_other_tail=True) == []
    assert equal(target, source)


def test_only_the_tail_may_differ(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"body\.0\.body\.0\.bias is \(8,\) in the file and \(4,\) in the model"):
        models.load(small(), saved(small(n_feats=8), tmp_path), allow_other_tail=True)


def test_truncated_file(tmp_path: Path) -> None:
    file = saved(small(), tmp_path)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(RequestError, match="is damaged or not a weights file"):
        models.load(small(), file)


def test_a_flipped_bit_in_a_tensor(tmp_path: Path) -> None:
    """torch.load does not check the archive's checksums."""
    source = small()
    file = saved(source, tmp_path)
    content = bytearray(file.read_bytes())
    content[content.index(source.state_dict()["tail.1.weight"].numpy().tobytes()) + 9] ^= 1
    file.write_bytes(content)
    assert not torch.equal(torch.load(file)["tail.1.weight"], source.state_dict()["tail.1.weight"])
    with pytest.raises(RequestError, match="is damaged or not a weights file"):
        models.load(small(), file)


def test_a_file_in_the_format_before_zip_archives(tmp_path: Path) -> None:
    source, target, file = small(), small(), tmp_path / "model.pt"
    torch.save(source.state_dict(), file, _use_new_zipfile_serialization=False)
    assert models.load(target, file) == []
    assert equal(source, target)


@pytest.mark.parametrize("content", [b"", b"garbage" * 100])
def test_file_of_another_format(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.pt"
    file.write_bytes(content)
    with pytest.raises(RequestError, match="is damaged or not a weights file"):
        models.load(small(), file)


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "touched",)  # type: ignore[return-value]

    file = tmp_path / "model.pt"
    torch.save({"head.0.weight": Harmful()}, file)
    with pytest.raises(RequestError):
        models.load(small(), file)
    assert not (tmp_path / "touched").exists()


def test_missing_file_and_file_without_state_dict(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot read the weights .*: No such file"):
        models.load(small(), tmp_path / "none.pt")
    for content in ([torch.zeros(1)], {0: torch.zeros(1)}):
        torch.save(content, tmp_path / "other.pt")
        with pytest.raises(RequestError, match="holds no state dict"):
            models.load(small(), tmp_path / "other.pt")
