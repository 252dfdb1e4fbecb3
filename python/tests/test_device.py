"""device=, on the CPU: the same way as to a GPU, without streams and pinned memory. Needs numpy, pytest and torch."""

import itertools

import numpy as np
import pytest

import saturate
from sample_sets import FIELD_KINDS, Numbered, field_arguments, resumed_labels

torch = pytest.importorskip("torch")
SYNTH = "synth:size=24,count=60"
ARGUMENTS = {"batch": 16, "size": 20, "threads": 2, "crop": "random_resized", "to": "torch",
             "options": {"augment.hue": 0.1}}


def both(source=SYNTH, **arguments):
    plain = saturate.Loader(source, **{**ARGUMENTS, **arguments})
    return zip(saturate.Loader(source, **{**ARGUMENTS, "device": "cpu", **arguments}), plain)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float16", 4e-3), ("bfloat16", 3e-2), ("uint8", 0)])
def test_pixels_are_those_without_it(layout, dtype, tolerance):
    count = 0
    for (a, la), (b, lb) in both(layout=layout, dtype=dtype):
        assert a.dtype == b.dtype and a.shape == b.shape and a.is_contiguous()
        assert (a.float() - b.float()).abs().max() <= tolerance and la.equal(lb)
        count += 1
    assert count == 4


@pytest.mark.parametrize("arguments", [{"mixup": 1}, {"cutmix": 1}])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_mixing_is_that_without_it(arguments, layout):
    for (a, (l1, m1, lam1)), (b, (l2, m2, lam2)) in both(layout=layout, **arguments):
        assert (a - b).abs().max() < 1e-5 and l1.equal(l2) and m1.equal(m2) and lam1 == lam2
    for (a, soft1), (b, soft2) in both(layout=layout, soft_labels=True, **arguments):
        assert (a - b).abs().max() < 1e-5 and soft1.equal(soft2)


def test_bytes_cannot_be_mixed():
    with pytest.raises(saturate.Error, match="bytes cannot be mixed"):
        saturate.Loader(SYNTH, size=8, device="cpu", dtype="uint8", mixup=1)


def test_masks_come_along():
    for (a, m1), (b, m2) in both(SYNTH + ",masks=true"):
        assert (a - b).abs().max() < 1e-5 and m1.equal(m2)


def test_batches_ahead_do_not_count_as_returned():
    loader = saturate.Loader(Numbered(40), batch=4, size=6, device="cpu")
    whole, resumed = resumed_labels(loader, saturate.Loader(Numbered(40), batch=4, size=6))
    assert resumed == whole
    assert len(list(itertools.islice(loader, 2))) == 2 and loader.state_dict()["epoch"] == 1


def test_kept_batches_are_not_written_again():
    loader = saturate.Loader(Numbered(40), batch=4, size=6, device="cpu", dtype="uint8")
    kept = [(images, images.clone()) for images, _ in loader]
    list(loader)
    assert all(a.equal(b) for a, b in kept)


@pytest.mark.parametrize("kind", FIELD_KINDS)
def test_fields_are_those_without_it(kind, tmp_path):
    arguments = {**field_arguments(kind, tmp_path), "names": True}
    sizes = []
    for (a, names), (b, expected) in zip(*(saturate.Loader(**arguments, device=device) for device in ("cpu", None))):
        assert list(a) == list(b) and names == expected
        for name, values in b.items():
            assert type(a[name]) is torch.Tensor and a[name].dtype == values.dtype and a[name].equal(values), name
            assert a[name].is_contiguous(), name
        sizes.append(len(next(iter(a.values()))))
    assert sizes == [8, 8, 8, 8, 5]


def test_kept_fields_are_not_written_again(tmp_path):
    loader = saturate.Loader(**field_arguments("npz", tmp_path), device="cpu")
    kept = [(values, values.clone()) for batch in loader for values in batch.values()]
    for _ in range(3):
        list(loader)
    assert len(kept) == 25 and all(a.equal(b) for a, b in kept)


def test_fields_ahead_do_not_count_as_returned(tmp_path):
    arguments = {**field_arguments("npz", tmp_path), "batch": 4, "batch_transform": lambda batch: (batch, batch["y"])}
    whole, resumed = resumed_labels(saturate.Loader(**arguments, device="cpu"), saturate.Loader(**arguments))
    assert resumed == whole and sorted(sum(whole, [])) == list(range(37))


def test_fields_come_again_whole_after_a_transform_that_failed(tmp_path):
    seen = []

    def transform(batch):
        seen.append(batch.pop("y").tolist())
        if len(seen) == 1:
            raise ValueError("not yet")
        return batch

    iteration = iter(saturate.Loader(**field_arguments("npz", tmp_path), device="cpu", batch_transform=transform))
    with pytest.raises(ValueError, match="not yet"):
        next(iteration)
    assert list(next(iteration)) == ["x", "half", "positive", "bytes"] and seen[0] == seen[1]


def test_an_error_comes_after_the_batches_before_it():
    class Late(Numbered):
        def __getitem__(self, index):
            if index == 30:
                raise ValueError("late")
            return super().__getitem__(index)

    loader = saturate.Loader(Late(40), batch=4, size=6, device="cpu", train=False)
    found = []
    with pytest.raises(saturate.Error, match="late"):
        for _, labels in loader:
            found += labels.tolist()
    assert found == list(range(28))


def test_a_device_needs_torch_tensors():
    with pytest.raises(ValueError, match="torch"):
        saturate.Loader(SYNTH, size=8, device="cpu", to="numpy")
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            saturate.Loader(SYNTH, size=8, device="cuda")


def test_other_frameworks_import_what_is_on_the_device():
    loader = saturate.Loader(SYNTH, batch=16, size=20, device="cpu",
                             batch_transform=lambda batch: [np.from_dlpack(each) for each in batch])
    for (images, labels), (expected, _) in zip(loader, saturate.Loader(SYNTH, batch=16, size=20)):
        assert type(images) is type(labels) is np.ndarray and np.allclose(images, expected, atol=1e-5)
