"""The package on a GPU: tools/gpu-check runs these. Needs numpy, pytest, and torch with a GPU."""

import importlib.util
import json
import os
import shutil
import sysconfig

import pytest

import saturate
from sample_sets import FIELD_KINDS, Numbered, field_arguments, resumed_labels

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

SYNTH = "synth:size=64,count=600"
ARGUMENTS = {"batch": 32, "size": 48, "threads": 2, "crop": "random_resized", "options": {"augment.hue": 0.1}}


def both(source=SYNTH, **arguments):
    """Batches on the GPU, and those that should equal them."""
    return zip(*(saturate.Loader(source, device=device, **{**ARGUMENTS, **arguments}) for device in ("cuda", "cpu")))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
def test_pixels_have_the_bits_of_the_cpus(layout, dtype):
    for (a, la), (b, lb) in both(layout=layout, dtype=dtype):
        assert a.is_cuda and la.is_cuda and a.dtype == b.dtype and a.stride() == b.stride()
        assert a.cpu().equal(b) and la.cpu().equal(lb)


@pytest.mark.parametrize("arguments", [{"mixup": 1}, {"cutmix": 1}])
def test_mixing_is_that_of_the_cpu(arguments):
    for (a, soft1), (b, soft2) in both(soft_labels=True, **arguments):
        assert (a.cpu() - b).abs().max() < 1e-5 and (soft1.cpu() - soft2).abs().max() < 1e-6


def test_masks_come_along():
    for (a, m1), (b, m2) in both(SYNTH + ",masks=true"):
        assert a.cpu().equal(b) and m1.is_cuda and m1.cpu().equal(m2)


@pytest.mark.parametrize("side", [False, True])
def test_no_batch_is_written_while_a_late_gpu_needs_it(side):
    """The GPU reads each batch long after the loop has asked for later ones, on the default or another stream."""
    with torch.cuda.stream(torch.cuda.Stream() if side else torch.cuda.default_stream()):
        sums, expected = [], []
        for (a, _), (b, _) in both(dtype="uint8"):
            torch.cuda._sleep(20_000_000)
            sums.append(a.long().sum())
            expected.append(int(b.long().sum()))
            del a
        assert [int(each) for each in sums] == expected


def test_kept_batches_stay():
    kept = [(a, b) for (a, _), (b, _) in both(dtype="uint8")]
    assert len(kept) == 19 and all(a.cpu().equal(b) for a, b in kept)


@pytest.mark.parametrize("kind", FIELD_KINDS)
def test_fields_have_the_bits_of_the_cpus_also_if_the_gpu_is_late(kind, tmp_path):
    """Copies from the loader's memory begin long after the loop has asked for later batches, and so do reads."""
    arguments = field_arguments(kind, tmp_path)
    loader, twin = (saturate.Loader(**arguments, device=device) for device in ("cuda", "cpu"))
    found, expected = [], []
    for _ in range(4):
        for a, b in zip(loader, twin, strict=True):
            assert list(a) == list(b) and all(values.is_cuda for values in a.values())
            for stream in (loader._feed._stream, torch.cuda.current_stream()):
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(20_000_000)
            found += [values.clone() for values in a.values()]
            expected += b.values()
            del a
    assert all(a.cpu().equal(b) for a, b in zip(found, expected, strict=True))


def test_cupy_imports_what_is_on_the_gpu():
    cupy = pytest.importorskip("cupy")
    loader = saturate.Loader(SYNTH, device="cuda", **ARGUMENTS,
                             batch_transform=lambda batch: [cupy.from_dlpack(each) for each in batch])
    for found, expected in zip(loader, saturate.Loader(SYNTH, device="cpu", **ARGUMENTS), strict=True):
        assert all(isinstance(each, cupy.ndarray) for each in found)
        assert all((cupy.asnumpy(a) == b.numpy()).all() for a, b in zip(found, expected, strict=True))


def test_resuming_continues_with_the_next_batch():
    whole, resumed = resumed_labels(*(saturate.Loader(Numbered(40), batch=4, size=6, device="cuda") for _ in range(2)))
    assert resumed == whole


class Loop:
    """Long enough steps that a GPU is the limit."""

    def __init__(self):
        torch.manual_seed(3)
        layers = [torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
        layers += [torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU()] * 4
        layers += [torch.nn.Dropout(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(1024, 10)]
        self.model = torch.nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        data = torch.utils.data.TensorDataset(torch.randn(512, 3, 64, 64), torch.arange(512) % 10)
        self.loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)

    def step(self, batch):
        images, labels = (each.cuda() for each in batch)
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def state(self):
        moments = [value.cpu() for each in self.optimizer.state.values() for value in each.values()]
        return [*(each.cpu() for each in self.model.state_dict().values()), *moments, torch.cuda.get_rng_state(),
                torch.get_rng_state()]


def test_watch_measures_the_gpu(tmp_path):
    loop = Loop()
    for batch in loop.loader:  # the first steps load kernels
        loop.step(batch)
    with saturate.watch(out=tmp_path / "run") as watch:
        for _ in range(6):
            for batch in loop.loader:
                watch.step(loss=loop.step(batch))
        torch.cuda.synchronize()
    end = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    phases = end["device_phases"]
    assert min(phases[name] for name in ("copy", "forward", "backward", "optimizer")) > 0
    assert sum(phases.values()) < 1.05 * end["time_s"], end
    assert end["device_memory_peak_bytes"] > 64 << 20
    if importlib.util.find_spec("pynvml"):
        assert end["telemetry"]["gpu_memory_bytes"] > end["device_memory_peak_bytes"], end


def test_a_capturable_optimizer_goes_on_after_a_turn_with_fused():
    from saturate.observing import Observation
    from saturate.step_what_ifs import step_what_ifs

    loop = Loop()
    loop.optimizer = torch.optim.Adam(loop.model.parameters(), capturable=True)
    batch = next(iter(loop.loader))
    loop.step(batch)
    found = step_what_ifs(Observation(torch, loop.model, loop.optimizer), True, 1.0)
    what_if, = [each for each in found if each.name == "fused-optimizer"]
    with what_if.change():
        loop.step(batch)
    loop.step(batch)
    assert all(state["step"].is_cuda and state["step"] == 3 for state in loop.optimizer.state.values())


def test_diagnose_restores_the_gpu_to_the_bit():
    loop = Loop()
    for batch in loop.loader:
        loop.step(batch)
    before = loop.state()
    found = saturate.diagnose(loop.step, loop.loader, seconds=20)
    assert all(a.equal(b) for a, b in zip(before, loop.state(), strict=True))
    print(found)
    assert not torch.backends.cudnn.benchmark and not torch.is_autocast_enabled("cuda")
    assert all(each.is_contiguous() for each in loop.model.parameters())


def measured(found):
    return {cause.name for cause in (*found.causes, *found.uncertain, *found.idle)}


def test_diagnose_measures_what_only_a_gpu_has():
    loop, wanted = Loop(), {"tf32", "cudnn-benchmark", "pin-memory", "autocast-fp16", "autocast-bf16"}
    found = saturate.diagnose(loop.step, loop.loader, seconds=20, only=wanted)
    reasons = dict(found.skipped)
    assert measured(found) | set(reasons) == wanted, found
    # An older GPU has no bfloat16, and another setting of torch may hide that of TF32.
    assert set(reasons) <= {"tf32", "autocast-bf16"} and "no time" not in str(reasons), found


def test_diagnose_compiles_a_model(monkeypatch):
    has_compiler = any(map(shutil.which, ("cc", "gcc", "clang")))
    if not has_compiler or not os.path.exists(f"{sysconfig.get_path('include')}/Python.h"):
        pytest.skip("torch.compile needs a C compiler and Python's headers")
    monkeypatch.setattr("saturate.step_what_ifs.COMPILE_S", 30)
    loop = Loop()
    found = saturate.diagnose(loop.step, list(loop.loader), seconds=30, only=["compile"])
    assert measured(found) == {"compile"}, found
    assert loop.model._compiled_call_impl is None


def test_diagnose_replaces_the_loader_of_an_image_folder(tmp_path):
    images = pytest.importorskip("PIL.Image")
    datasets, transforms = (pytest.importorskip(f"torchvision.{name}") for name in ("datasets", "transforms"))
    (tmp_path / "photos/a").mkdir(parents=True)
    for number in range(16):  # noise takes long to decode
        pixels = torch.randint(256, (256, 256, 3), dtype=torch.uint8).numpy()
        images.fromarray(pixels).save(tmp_path / f"photos/a/{number}.jpg")
    augment, loop = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()]), Loop()
    loader = torch.utils.data.DataLoader(datasets.ImageFolder(tmp_path / "photos", augment), batch_size=8)
    found = saturate.diagnose(loop.step, loader, seconds=10, only=["saturate-loader"])
    assert [cause.name for cause in found.causes] == ["saturate-loader"], found
    assert "device='cuda'" in found.causes[0].remedy.lines[0]
