"""saturate's loader in place of a DataLoader over torchvision's ImageFolder. Needs torch and torchvision."""

import pathlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, WeightedRandomSampler  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.datasets import EuroSAT, ImageFolder, ImageNet  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

import saturate  # noqa: E402
from saturate.loader_what_ifs import loader_what_ifs  # noqa: E402
from saturate.replacing import replacement_of  # noqa: E402

SIDE = 16
CROP = v1.RandomResizedCrop(SIDE, scale=(1, 1), ratio=(1, 1))  # the whole of a square image
COLOURS = v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
FLOATS = v2.ToDtype(torch.float32, scale=True)


def fill(folder, level=0):
    """Ten square images in three classes, one of which has a folder in it."""
    from PIL import Image

    generator = torch.Generator().manual_seed(level)
    for number in range(10):
        path = folder / "abc"[number % 3] / ("below" if number == 7 else "") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(level, 256, (24, 24, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(path)
    return folder


def test_samples_may_have_paths_as_objects(photos):
    loader = loader_of(photos)
    loader.dataset.samples = [(pathlib.Path(path), label) for path, label in loader.dataset.samples]
    assert replacement_of(loader)[1] == ""


@pytest.fixture
def photos(tmp_path):
    return fill(tmp_path / "photos")


def loader_of(folder, *parts, kind=ImageFolder, **arguments):
    composed = v1.Compose(list(parts or [CROP, v1.ToTensor()]))
    return DataLoader(kind(folder, transform=composed), **{"batch_size": 4, **arguments})


def assert_same_batches(loader):
    """The order of a loader that does not shuffle is its own; the pixels differ by the rounding of a resize."""
    arguments, why, _ = replacement_of(loader)
    assert why == ""
    what_if = next(each for each in loader_what_ifs(loader, has_gpu=False) if each.name == "saturate-loader")
    with what_if.batches() as replacing:
        assert (len(replacing), replacing.samples) == (len(loader), len(loader.dataset))
        for (images, labels), (expected, wanted) in zip(replacing, loader):
            assert (images.shape, images.dtype, labels.dtype) == (expected.shape, expected.dtype, wanted.dtype)
            assert labels.tolist() == wanted.tolist()
            span = float(expected.max()) - float(expected.min())
            assert (images.double() - expected.double()).abs().max() < 0.02 * span
    return arguments


@pytest.mark.parametrize("parts", [
    [CROP, v1.ToTensor(), COLOURS], [CROP, v1.PILToTensor()], [v2.ToImage(), CROP], [v1.ToTensor(), CROP],
    [CROP, v1.PILToTensor(), v1.ConvertImageDtype(torch.float), COLOURS],
    [v2.Compose([v2.PILToTensor(), v2.RandomResizedCrop(SIDE, (1, 1), (1, 1)), v2.RandomHorizontalFlip(1.0), FLOATS,
                 v2.Normalize([0.5] * 3, [0.1] * 3), v2.ToPureTensor()])],
    [CROP, v2.ToImage(), v2.ToDtype(torch.float16, scale=True)],
    [v1.RandomResizedCrop((8, 8), scale=(1, 1), ratio=(1, 1)), v1.ToTensor()],
    [v1.Resize((8, 12)), v1.ToTensor()], [v2.Resize(24), v2.CenterCrop(SIDE), v2.ToImage()],
    [v2.Resize((8, 8)), v2.RandomCrop(8), v2.ToImage()], [CROP, v1.RandomGrayscale(1.0), v1.ToTensor(), COLOURS]])
def test_batches_are_the_same(photos, parts):
    assert_same_batches(loader_of(photos, *parts))


def test_all_arguments(photos):
    parts = [v1.RandomResizedCrop((SIDE, 8)), v1.RandomHorizontalFlip(0.25), v1.ToTensor(), COLOURS]
    arguments, why, differences = replacement_of(loader_of(photos, *parts, shuffle=True, drop_last=True))
    assert (why, differences) == ("", ()) and arguments == {
        "source": f"folder:{photos}", "batch_size": 4, "to": "torch", "flip": 0.25, "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.25, 0.3], "size": (SIDE, 8), "crop": "random_resized", "dtype": "float32", "drop_last": True,
        "options": {"augment.scale": [0.08, 1.0], "augment.ratio": [0.75, 4 / 3]}}
    assert [len(labels) for _, labels in saturate.Loader(**arguments)] == [4, 4]


def test_datasets_whose_root_is_above(tmp_path, monkeypatch):
    root = tmp_path / "imagenet"
    for level, split in enumerate(("train", "val")):
        fill(root / split, level)
    monkeypatch.setattr(ImageNet, "parse_archives", lambda _: None)
    names = {name: (name, f"a kind of {name}") for name in "abc"}
    monkeypatch.setattr("torchvision.datasets.imagenet.load_meta_file", lambda _: (names, None))

    def validation(folder, transform):
        return ImageNet(folder, "val", transform=transform)

    for split, kind in (("train", ImageNet), ("val", validation)):
        assert assert_same_batches(loader_of(root, kind=kind))["source"] == f"folder:{root}/{split}"
    fill(tmp_path / "eurosat/2750")
    assert_same_batches(loader_of(tmp_path, kind=EuroSAT))


def test_a_folder_with_one_class(tmp_path):
    for name in ("b", "c"):
        (fill(tmp_path) / name).rename(tmp_path.parent / f"{tmp_path.name}-{name}")
    assert_same_batches(loader_of(tmp_path))


BILINEAR = v1.InterpolationMode.BILINEAR
RESIZED = v2.Resize((SIDE, SIDE))
ERASED = {"augment.erase": 0.3, "augment.erase_scale": [0.02, 0.33], "augment.erase_ratio": [0.3, 3.3]}


@pytest.mark.parametrize("parts, options, different", [
    ([v1.TrivialAugmentWide(interpolation=BILINEAR)], {"augment.policy": "trivial"}, ""),
    ([v2.RandAugment(3, 7, interpolation=BILINEAR)], {"augment.policy": "rand:3:7"}, ""),
    ([v2.RandAugment(3, 7)], {"augment.policy": "rand:3:7"}, "RandAugment"),
    ([v2.ColorJitter(contrast=2)], {"augment.contrast": 2.0}, ""),
    ([v1.ColorJitter(0.4, hue=0.1)], {"augment.brightness": 0.4, "augment.hue": 0.1}, "ColorJitter"),
    ([v1.RandomRotation(10, BILINEAR)], {"augment.rotate": 10.0}, ""),
    ([v2.RandomAffine(5, (0.1, 0.1), (0.8, 1.2), 3)],
     {"augment.rotate": 5.0, "augment.translate": 0.1, "augment.zoom": 0.2, "augment.shear": 3.0}, "RandomAffine"),
    ([v1.RandomGrayscale(0.2), v1.GaussianBlur(3)], {"augment.grey": 0.2, "augment.blur": [1.0, 0.1, 2.0]}, "Blur"),
    ([v1.ToTensor(), COLOURS, v1.RandomErasing(0.3)], ERASED, ""), ([v2.ToImage(), v2.RandomErasing(0.3)], ERASED, "")])
def test_effects_have_counterparts(photos, parts, options, different):
    loader = loader_of(photos, RESIZED, *parts, v1.PILToTensor())
    arguments, why, differences = replacement_of(loader)
    assert why == "" and arguments["options"] == options
    assert len(differences) == bool(different) and different in "".join(differences)
    what_if = next(each for each in loader_what_ifs(loader, has_gpu=False) if each.name == "saturate-loader")
    assert what_if.alters == bool(different)
    with what_if.batches() as replacing:
        assert [len(labels) for _, labels in replacing] == [4, 4, 2]


def test_crops_have_counterparts(photos):
    reflected = v1.RandomCrop(SIDE, padding=3, padding_mode="reflect")
    for part, crop in ((v2.RandomCrop(SIDE, padding=4), "pad:4"), (reflected, "pad_reflect:3")):
        arguments, _, differences = replacement_of(loader_of(photos, RESIZED, part, v1.ToTensor()))
        assert (arguments["crop"], arguments["size"], differences) == (crop, SIDE, ())
        assert len(list(saturate.Loader(**arguments))) == 3
    arguments, _, differences = replacement_of(loader_of(photos, v1.Resize(24), v1.CenterCrop(SIDE), v1.ToTensor()))
    assert arguments["options"] == {"augment.eval_resize": 1.5} and "CenterCrop" in differences[0]


def test_a_gpu_gets_its_batches_there(photos):
    what_if = next(each for each in loader_what_ifs(loader_of(photos), has_gpu=True) if each.name == "saturate-loader")
    assert "device='cuda'" in what_if.remedy.lines[0] and not what_if.skipped


@pytest.mark.parametrize("used, current, shown", [(1, 0, "cuda:1"), (0, 1, "cuda:0"), (1, 1, "cuda")])
def test_batches_go_to_the_gpu_that_the_script_uses(photos, monkeypatch, used, current, shown):
    for name, value in {"is_available": lambda: True, "device_count": lambda: 2, "current_device": lambda: current,
                        "memory_allocated": lambda index: int(index == used)}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    what_if = next(each for each in loader_what_ifs(loader_of(photos), has_gpu=True) if each.name == "saturate-loader")
    assert f"device='{shown}'" in what_if.remedy.lines[0]


class Indexed(ImageFolder):
    def __getitem__(self, index):
        return (*super().__getitem__(index), index)


def fewer(folder, transform):
    dataset = ImageFolder(folder, transform=transform)
    dataset.samples = dataset.samples[:6]
    return dataset


def relabelled(folder, transform):
    dataset = ImageFolder(folder, transform=transform)
    dataset.samples = [(path, 2 - label) for path, label in dataset.samples]
    return dataset


class Preset:  # as in torchvision's reference scripts
    def __init__(self, *parts):
        self.transforms = v1.Compose(list(parts))

    def __call__(self, img):
        return self.transforms(img)


class OtherPreset(Preset):
    def __call__(self, img):
        return -self.transforms(img)


class RandomResizedCrop(v1.CenterCrop):
    scale, ratio, interpolation = (1, 1), (1, 1), "bilinear"


def test_a_class_that_only_calls_a_compose_is_seen_through(photos):
    assert_same_batches(loader_of(photos, Preset(CROP), v1.ToTensor()))


@pytest.mark.parametrize("parts, reason", [
    ([CROP, v1.RandomPerspective(), v1.ToTensor()], "RandomPerspective"),
    ([CROP], "tensors of one size"), ([v1.ToTensor()], "tensors of one size"),
    ([v1.Resize(SIDE), v1.ToTensor()], "tensors of one size"), ([v1.CenterCrop(SIDE), v1.ToTensor()], "of CenterCrop"),
    ([RESIZED, v1.RandomCrop(8), v1.ToTensor()], "of RandomCrop"),
    ([CROP, v1.ColorJitter((0.5, 0.8)), v1.ToTensor()], "of ColorJitter"),
    ([CROP, v1.RandomRotation(9, expand=True), v1.ToTensor()], "of RandomRotation"),
    ([CROP, v1.RandomAffine(9, (0.1, 0.2)), v1.ToTensor()], "of RandomAffine"),
    ([CROP, v1.RandAugment(num_magnitude_bins=10), v1.ToTensor()], "of RandAugment"),
    ([CROP, v1.ToTensor(), v1.RandomErasing(value="random")], "of RandomErasing"),
    ([CROP, v1.ToTensor(), v1.RandomErasing(), COLOURS], "applies Normalize at another place"),
    ([CROP, v1.GaussianBlur(3), v1.ColorJitter(0.1), v1.ToTensor()], "applies ColorJitter at another place"),
    ([v1.ColorJitter(0.1), CROP, v1.ToTensor()], "applies RandomResizedCrop at another place"),
    ([CROP, v1.RandAugment(), v1.RandomHorizontalFlip(), v1.ToTensor()], "applies RandomHorizontalFlip at another"),
    ([OtherPreset(CROP, v1.ToTensor())], "OtherPreset"), ([CROP, CROP, v1.ToTensor()], "crops once"),
    ([CROP, v1.Resize(9), v1.ToTensor()], "Resize"),
    ([RandomResizedCrop(8), v1.ToTensor()], "transform RandomResizedCrop"),
    ([v1.RandomApply([v1.RandomHorizontalFlip()]), CROP, v1.ToTensor()], "RandomApply"),
    ([v1.RandomResizedCrop(8, interpolation=v1.InterpolationMode.BICUBIC), v1.ToTensor()], "bicubic"),
    ([v2.ToImage(), v2.RandomResizedCrop(8, antialias=False)], "antialias"),
    ([CROP, v2.ToImage(), v2.ToDtype(torch.float32)], "ToDtype does not scale to 1"),
    ([CROP, v2.ToImage(), v2.ToDtype(torch.float64, scale=True)], "no batches of torch.float64")])
def test_other_transforms_have_none(photos, parts, reason):
    arguments, why, _ = replacement_of(loader_of(photos, *parts))
    assert arguments is None and reason in why and "\n" not in why


@pytest.mark.parametrize("reason, make", [
    ("WeightedRandomSampler", lambda folder: loader_of(folder, sampler=WeightedRandomSampler([1.0] * 10, 10))),
    ("RandomSampler", lambda folder: loader_of(folder, sampler=RandomSampler(range(10), replacement=True))),
    ("RandomSampler", lambda folder: loader_of(folder, sampler=RandomSampler(range(10), num_samples=4))),
    ("DistributedSampler", lambda folder: loader_of(folder, sampler=DistributedSampler(range(10), 3, 1))),
    ("batch_size", lambda folder: loader_of(folder, batch_size=None)),
    ("batch_size", lambda folder: loader_of(folder, batch_size=1, batch_sampler=[[0, 1], [2]])),
    ("collate_fn", lambda folder: loader_of(folder, collate_fn=list)),
    ("own way to read", lambda folder: loader_of(folder, kind=Indexed)),
    ("samples are not those", lambda folder: loader_of(folder, kind=fewer)),
    ("samples are not those", lambda folder: loader_of(folder, kind=relabelled))])
def test_other_loaders_have_none(photos, reason, make):
    arguments, why, _ = replacement_of(make(photos))
    assert arguments is None and reason in why


def test_samplers_that_have_a_counterpart(photos, monkeypatch):
    assert replacement_of(DataLoader(list(range(3)))).why_not == "the dataset is not torchvision's ImageFolder"
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    loader = loader_of(photos, batch_size=2, sampler=DistributedSampler(range(10), 2, 1, shuffle=False, drop_last=True))
    assert assert_same_batches(loader)["uneven"] == "drop"
    shuffled, *_ = replacement_of(loader_of(photos, sampler=DistributedSampler(range(10), 2, 1)))
    assert "shuffle" not in shuffled and shuffled["uneven"] == "pad" and "world" not in shuffled
    assert assert_same_batches(loader_of(photos, batch_size=2))["world"] == 1  # each process reads all samples
