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


class Own:
    """Grey images, each of one level; the target is a function of the index."""

    def __init__(self, target, count=21, classes=None):
        self.target, self.count = target, count
        if classes:
            self.classes = classes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return np.full((8, 8), index, np.uint8), self.target(index)


def batches(target, kind, epochs=1, **arguments):
    loader = saturate.Loader(Own(target), target=kind, dtype="uint8", **{"batch": 8, "size": 8, "crop": "none",
                                                                        "flip": 0, **arguments})
    return [pair for _ in range(epochs) for pair in loader]


def ints(index):
    return [index, -index, index % 3]


def floats(index):
    return np.array([index / 2, index], np.float32)


def scalars(index):
    return [np.int64(index), np.int16(3)]


def bools(index):
    return (index % 2 == 0, True)


@pytest.mark.parametrize("kind, dtype", [(ints, np.int64), (floats, np.float32), (bools, np.float32),
                                         (scalars, np.int64)])
@pytest.mark.parametrize("arguments", [{}, {"cache": "ram:decoded"}, {"processes": 1}, {"rank": 1, "world": 2}])
def test_several_labels_belong_to_their_images(kind, dtype, arguments):
    found = 0
    for images, labels in batches(kind, "labels", epochs=3, **arguments):
        levels = images[:, 0, 0, 0]
        assert labels.dtype == dtype and labels.shape == (len(levels), len(kind(0)))
        assert np.array_equal(labels, np.array([kind(int(level)) for level in levels], dtype))
        found += len(levels)
    assert found == (33 if "world" in arguments else 63)


def test_several_labels_are_mixed_like_one():
    arguments = {"batch": 8, "size": 8, "mixup": 1.0, "flip": 0}
    loaders = [saturate.Loader(Own(lambda index: index), classes=[str(i) for i in range(21)], **arguments),
               saturate.Loader(Own(lambda index: [index, index + 100]), target="labels", **arguments),
               saturate.Loader(Own(lambda index: [index, 0.5]), target="labels", soft_labels=True, **arguments)]
    for one, several, soft in zip(*loaders):
        (labels, mixed, lam), (many, many_mixed, same), (weighted) = one[1], several[1], soft[1]
        assert lam == same and np.array_equal(many, np.stack([labels, labels + 100], 1))
        assert np.array_equal(many_mixed, np.stack([mixed, mixed + 100], 1))
        assert np.allclose(weighted, np.stack([lam * labels + (1 - lam) * mixed, np.full(len(labels), 0.5)], 1))


def blobs(index):
    mask = np.zeros((8, 8), np.uint8)
    mask[index % 8, :] = 1 + index % 2
    mask[0, 0] = 255
    return mask


def as_pil(index):
    from PIL import Image

    return Image.fromarray(blobs(index))


def as_png(index):
    import io

    memory = io.BytesIO()
    as_pil(index).save(memory, "png")
    return memory.getvalue()


@pytest.mark.parametrize("kind", [blobs, as_pil, as_png])
@pytest.mark.parametrize("processes", [0, 1])
def test_masks_belong_to_their_images(kind, processes):
    if kind is not blobs:
        pytest.importorskip("PIL.Image")
    found = 0
    for images, masks in batches(kind, "mask", classes=["ground", "a", "b"], train=False, processes=processes):
        levels = images[:, 0, 0, 0]
        assert masks.dtype == np.uint8
        assert np.array_equal(masks, np.stack([blobs(int(level)) for level in levels]))
        found += len(levels)
    assert found == 21


def test_an_unusable_target_names_the_sample_and_the_remedy():
    for target, kind, message in [
            (ints, "label", r'label is list instead of an integer; for several labels use target="labels"'),
            (lambda index: index, "labels", "labels are int instead of a list or array"),
            (lambda index: [], "labels", "labels are list"), (lambda index: ["a"], "labels", "labels are list"),
            (lambda index: [[1]], "labels", "labels are list"), (lambda index: [2**63], "labels", "64 bits"),
            (lambda index: [1] * (1 + (index == 5)), "labels", "2 of int64 as labels, and earlier samples have 1 of"),
            (lambda index: [1.5 if index == 5 else 1], "labels", "1 of float32 as labels"),
            (lambda index: 3, "mask", "mask is int instead of an array"),
            (lambda index: np.zeros((8, 8)), "mask", r"array of float64 \[8, 8\] instead of uint8"),
            (lambda index: np.zeros((8, 9), np.uint8), "mask", "9 x 8 pixels"),
            (lambda index: np.full((8, 8), 7, np.uint8), "mask", "class 7"), (lambda index: b"x", "mask", "mask of")]:
        classes = ["a", "b"] if kind == "mask" else None
        with pytest.raises(saturate.Error, match=message) as failure:
            batches(target, kind, classes=classes, shuffle=False, threads=1)
        assert "sample" in str(failure.value)
    with pytest.raises(TypeError, match="2 to 255 classes"):
        batches(blobs, "mask")
    with pytest.raises(ValueError, match="use \"label\", \"labels\" or \"mask\""):
        batches(ints, "boxes")
    with pytest.raises(TypeError, match="target are for a dataset of your own"):
        saturate.Loader(SYNTH, batch=8, size=8, target="labels")
