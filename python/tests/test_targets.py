"""MixUp, CutMix, soft labels, and masks. Needs numpy and pytest."""

import numpy as np
import pytest

import saturate

SYNTH = "synth:size=24,count=60"
ARGUMENTS = {"batch": 16, "size": 20, "threads": 2}


def epochs(count=3, **arguments):
    loader = saturate.Loader(SYNTH, **{**ARGUMENTS, **arguments})
    return [(np.array(images), target) for _ in range(count) for images, target in loader]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_mixup_is_a_weighted_mean_of_two_images(layout):
    lams = set()
    for (images, (labels, mixed, lam)), (plain, own) in zip(epochs(mixup=1, layout=layout), epochs(layout=layout)):
        assert 0.5 <= lam <= 1 and labels.dtype == np.int64
        offset = rotation(own, labels, mixed)
        swapped = not np.array_equal(labels, own)
        weight = 1 - lam if swapped else lam
        expected = weight * plain + (1 - weight) * np.roll(plain, offset, axis=0)
        assert np.allclose(images, expected, atol=1e-5)
        lams.add(lam)
    assert len(lams) == 12  # one draw for each batch


def rotation(own, labels, mixed):
    """How far the other labels are rotated."""
    other = mixed if np.array_equal(labels, own) else labels
    assert np.array_equal(labels, own) or np.array_equal(mixed, own)
    return next(offset for offset in range(1, len(own)) if np.array_equal(np.roll(own, offset), other))


def test_cutmix_moves_a_box():
    for layout in ("nchw", "nhwc"):
        for (images, (labels, mixed, lam)), (plain, own) in zip(epochs(cutmix=1, layout=layout), epochs(layout=layout)):
            other = np.roll(plain, rotation(own, labels, mixed), axis=0)
            moved = (images != plain).any(axis=1 if layout == "nchw" else 3).any(axis=0)  # [20, 20]
            assert np.array_equal(np.where((images != plain), other, plain), images)
            ys, xs = np.nonzero(moved)
            area = (np.ptp(ys) + 1) * (np.ptp(xs) + 1) if len(ys) else 0
            assert moved.sum() == area  # a whole box
            assert abs(max(area / 400, 1 - area / 400) - lam) < 1e-9


def test_half_precision_is_mixed_alike():
    for (half, _), (full, _) in zip(epochs(mixup=0.4, dtype="float16"), epochs(mixup=0.4)):
        assert np.allclose(half, full, atol=4e-3)


def test_soft_labels_are_the_weighted_labels():
    for (images, soft), (same, (labels, mixed, lam)) in zip(epochs(mixup=1, cutmix=1, soft_labels=True),
                                                           epochs(mixup=1, cutmix=1)):
        expected = lam * np.eye(10)[labels] + (1 - lam) * np.eye(10)[mixed]
        assert soft.dtype == np.float32 and np.allclose(soft, expected, atol=1e-6) and np.array_equal(images, same)


def test_evaluation_is_not_mixed():
    for (images, labels), (plain, own) in zip(epochs(1, train=False, mixup=1), epochs(1, train=False)):
        assert np.array_equal(images, plain) and np.array_equal(labels, own)
    _, soft = epochs(1, train=False, soft_labels=True)[0]
    assert (soft.sum(axis=1) == 1).all() and (soft.max(axis=1) == 1).all()


def test_a_batch_of_one_has_lambda_one():
    images, (labels, mixed, lam) = epochs(1, batch=59, mixup=1)[1]
    assert len(images) == 1 and lam == 1 and np.array_equal(labels, mixed)


def test_soft_labels_need_classes():
    with pytest.raises(saturate.Error, match="classes="):
        saturate.Loader([(b"", 0)], size=8, soft_labels=True)


def test_masks_follow_their_images():
    loader = saturate.Loader(SYNTH + ",masks=true", batch=16, size=24, train=False)
    assert loader.classes[0] == "background"
    for images, masks in loader:
        assert masks.dtype == np.uint8 and masks.shape == (len(images), 24, 24)
        assert masks.max() < len(loader.classes) and (masks > 0).any()
        mirrored = saturate.Loader(SYNTH + ",masks=true", batch=16, size=24, shuffle=False, flip=1)
        for flipped, turned in mirrored:
            assert np.array_equal(turned, masks[:, :, ::-1]) and np.allclose(flipped, images[:, :, :, ::-1], atol=1e-5)
            break
        break


def test_masks_outlive_the_loader_and_are_255_outside():
    loader = saturate.Loader(SYNTH + ",masks=true", batch=60, size=24, crop="pad:8")
    (_, masks), = loader
    copy = masks.copy()
    del loader
    assert np.array_equal(masks, copy) and (masks == 255).any()


@pytest.mark.parametrize("arguments", [{"mixup": 1}, {"cutmix": 1}, {"soft_labels": True}])
def test_masks_are_not_mixed(arguments):
    with pytest.raises(saturate.Error, match="masks cannot"):
        saturate.Loader(SYNTH + ",masks=true", size=8, **arguments)
