"""saturate.watch(): a GPU's time, workers' time, all-reduces of DDP, TensorBoard, telemetry. Needs pytest, and torch for
most tests."""

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
import types

import pytest
from fake_gpu import FakeGpu

import saturate
from saturate import watching
from saturate.phases import PhaseClock
from saturate.sampling import BEGINNING
from saturate.telemetry import Gpu


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def gpu(monkeypatch, torch):
    gpu = FakeGpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpu.is_capturing)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 12345)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    return gpu


class Loop:
    def __init__(self, torch, gpu):
        self.torch, self.gpu = torch, gpu
        loop = self

        class Model(torch.nn.Linear):
            def forward(self, inputs):
                loop.run(2)
                return super().forward(inputs)

        self.model = Model(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.model.weight.register_hook(lambda gradient: loop.run(4))

    def run(self, milliseconds):
        self.gpu.enqueued += milliseconds
        self.gpu.done = self.gpu.enqueued

    def step(self):
        loss = self.model(self.torch.ones(1, 2).to(self.torch.float32)).sum()
        loss.backward()
        self.run(1)  # between backward and optimizer: counts for the backward
        self.optimizer.step()
        self.run(3)
        return loss


def test_a_watch_reports_the_gpu_s_phases(torch, gpu, tmp_path, monkeypatch):
    # Long steps, as on a busy machine, would have the next ones measured.
    monkeypatch.setattr(watching, "PhaseClock", lambda: PhaseClock(lambda: round(gpu.enqueued * 10**6)))
    loop = Loop(torch, gpu)
    with saturate.watch(out=tmp_path / "run") as watch:
        for _ in range(3 * BEGINNING):
            watch.step(loss=loop.step())
        found = {name: round(seconds * 1e3, 6) for name, seconds in watch.device_phases.items() if seconds}
    steps = 3 * BEGINNING
    assert found == {"forward": 2 * steps, "backward": 5 * steps, "optimizer": 3 * steps}
    end = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert end["device_phases"]["backward"] == pytest.approx(5e-3 * steps)
    assert end["device_memory_peak_bytes"] == 12345
    assert gpu.recorded < 5 * steps  # later ones of short steps are not measured


def test_an_evaluation_on_the_gpu_counts_once_and_training_steps_stand_for_others(torch, gpu, monkeypatch):
    from saturate import sampling

    monkeypatch.setattr(sampling, "EVERY_NS", 10**15)  # after the first steps none is measured
    loop, steps = Loop(torch, gpu), 3 * BEGINNING
    with saturate.watch() as watch:
        for number in range(steps):
            loss = loop.step()
            if number in (BEGINNING - 2, steps - 2):  # in a measured step, and in one that is not
                with torch.no_grad():
                    for _ in torch.utils.data.DataLoader([0]):
                        loop.model(torch.ones(1, 2))
                        loop.run(98)
            watch.step(loss=loss)
        found = {name: round(seconds * 1e3, 6) for name, seconds in watch.device_phases.items() if seconds}
    assert found["evaluation"] == 200 and found["forward"] == 2 * steps and found["backward"] == 5 * steps


def test_a_loop_without_gradients_has_its_time_on_the_gpu(torch, gpu):
    loop = Loop(torch, gpu)
    with saturate.watch() as watch, torch.no_grad():
        for _ in torch.utils.data.DataLoader(range(50)):
            loop.model(torch.ones(1, 2))
            watch.step()
        assert watch.device_phases["evaluation"] == pytest.approx(50 * 2e-3)


def test_copies_have_their_time(torch, gpu, monkeypatch):
    loop, to = Loop(torch, gpu), torch.Tensor.to

    def slow(tensor, *arguments, **named):
        loop.run(5)
        time.sleep(0.002)
        return to(tensor, *arguments, **named)

    monkeypatch.setattr(torch.Tensor, "to", slow)
    with saturate.watch() as watch:
        for _ in range(3):
            watch.step(loss=loop.step())
        assert watch.device_phases["copy"] == pytest.approx(3 * 5e-3)
        assert watch.phases["copy"] > 0.005


def test_without_a_gpu_its_values_are_null(torch, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with saturate.watch(out=tmp_path / "run") as watch:
        watch.step()
        assert watch.device_phases is None and watch.workers is None
    _, end = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert end["device_phases"] is end["device_memory_peak_bytes"] is end["workers"] is None
    assert end["telemetry"]["net_receive_bytes_per_s"] >= 0 and "gpu_busy" not in end["telemetry"]


def test_a_gpu_s_telemetry_comes_from_nvml(torch, gpu, monkeypatch):
    handles = []
    nvml = types.SimpleNamespace(
        nvmlInit=lambda: None, NVML_CLOCK_SM=1, NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetHandleByUUID=lambda uuid: handles.append(uuid) or "handle",
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=42, memory=7),
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=99),
        nvmlDeviceGetPowerUsage=lambda handle: 250000, nvmlDeviceGetClockInfo=lambda handle, kind: 1400,
        nvmlDeviceGetTemperature=lambda handle, kind: 61)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(uuid="abc"))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpu().read() == {}  # the package is not installed
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    reader = Gpu()
    assert reader.read() == reader.read() == {
        "gpu_busy": 0.42, "gpu_memory_busy": 0.07, "gpu_memory_bytes": 99, "gpu_power_w": 250, "gpu_clock_mhz": 1400,
        "gpu_celsius": 61}
    assert handles == ["GPU-abc"]
    nvml.nvmlDeviceGetPowerUsage = lambda handle: 1 / 0
    assert reader.read() == reader.read() == {}


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_time_inside_workers(torch, start, tmp_path):
    from sample_sets import Sleeping, NoteWorker

    notes = tmp_path / "notes"
    notes.mkdir()
    loader = torch.utils.data.DataLoader(Sleeping(), batch_size=4, num_workers=2, multiprocessing_context=start,
                                         worker_init_fn=NoteWorker(str(notes)))
    with saturate.watch(out=tmp_path / "run") as watch:
        for _ in range(2 if start == "fork" else 1):
            for batch in loader:
                watch.step()
        passes = 2 if start == "fork" else 1
        workers = watch.workers
    assert workers["batches"] == 6 * passes
    assert workers["busy_s"] >= 6 * passes * 4 * Sleeping.SECONDS
    assert 0 <= workers["cpu_s"] < workers["busy_s"]
    assert loader.worker_init_fn.folder == str(notes) and len(list(notes.iterdir())) == 2 * passes
    end = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert end["workers"]["batches"] == 6 * passes and "workers: " in str(watch)
    assert torch.utils.data.dataloader._MultiProcessingDataLoaderIter.__init__.__module__.startswith("torch.")


def test_a_forked_worker_marks_no_phase(torch, gpu):
    class Moving(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            before = gpu.recorded
            torch.ones(1).to(torch.float64)  # an event in a forked process would fail on a GPU
            return gpu.recorded - before

    loader = torch.utils.data.DataLoader(Moving(), num_workers=1, multiprocessing_context="fork")
    with saturate.watch():
        assert [int(batch) for batch in loader] == [0] * 4


REDUCING = """
    import datetime, json, os, sys
    import torch, torch.utils.checkpoint, saturate
    import torch.distributed as dist
    from saturate.phases import REDUCE, PhaseClock
    rank, port = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", timeout=limit, rank=rank, world_size=2)
    store = dist.TCPStore("127.0.0.1", port + 1, 2, rank == 0, limit)
    torch.manual_seed(0)
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nests = False
            self.a, self.norm, self.b = torch.nn.Linear(4, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 2)
        def forward(self, x):
            return self.b(torch.utils.checkpoint.checkpoint(lambda y: self.norm(self.a(y)), x, use_reentrant=self.nests))
    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step(number, watch):
        loss = model(torch.randn(8, 4, requires_grad=True)).square().mean()
        if rank == 1:  # a straggler: it computes gradients once rank 0 waits for them
            store.wait([f"{number} waits"], limit)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.step(loss=loss)
    with saturate.watch() as watch:
        clock, found, number = watch._clock, [], 0
        switch = PhaseClock.switch
        def noting(*arguments):
            switch(*arguments)
            if clock.phase == REDUCE:
                found.append(number)
                if rank == 0:
                    store.set(f"{number} waits", "yes")
        PhaseClock.switch = noting
        for number in range(4):
            model.module.nests = number >= 2  # the first layers' backward, with DDP's wait, is in the last ones'
            step(number, watch)
        reduced = [watch.phases["reduce"]]
        dist.barrier()
        watch.step()
        reduced.append(watch.phases["reduce"])
        assert clock.phase != REDUCE and sum(clock.spent) == clock.now - clock.begin
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    gathered = [torch.zeros_like(weights) for _ in range(2)]
    dist.all_gather(gathered, weights)
    print(json.dumps({"same": gathered[0].equal(gathered[1]), "reduced": reduced,
                      "waits": found}), flush=True)
    dist.destroy_process_group()
    __import__("os")._exit(0)  # at its exit on a busy machine torch may abort
"""


def two_free_ports():
    for port in range(29600, 29900, 2):
        with socket.socket() as one, socket.socket() as next_one:
            try:
                one.bind(("127.0.0.1", port))
                next_one.bind(("127.0.0.1", port + 1))
                return str(port)
            except OSError:
                pass
    pytest.skip("no free ports")


def test_reduce_begins_with_the_last_gradient_and_holds_the_wait_for_others(torch, tmp_path):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch was built without Gloo")
    script = tmp_path / "reducing.py"
    script.write_text(textwrap.dedent(REDUCING))
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    port = two_free_ports()
    ranks = [subprocess.Popen([sys.executable, str(script), str(rank), port], stdout=subprocess.PIPE, env=environment,
                              text=True) for rank in range(2)]
    results = [process.communicate()[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    for result in map(json.loads, results):
        assert result["same"] and result["waits"] == [0, 1, 2, 2, 3, 3]  # at the end of each backward
        assert 0 < result["reduced"][0] < result["reduced"][1]


def test_tensorboard_s_own_reader_reads_the_events(torch, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr(watching, "RECORD_NS", 0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for given, folder in ((True, tmp_path / "run/tb"), (tmp_path / "events", tmp_path / "events")):
        with saturate.watch(out=tmp_path / "run" if given is True else None, tensorboard=given) as watch:
            for _ in range(3):
                loss = model(torch.ones(1, 2)).square().sum()
                loss.backward()
                optimizer.step()
                watch.step(loss=loss)
        events = EventAccumulator(str(folder))
        events.Reload()
        tags = events.Tags()["scalars"]
        assert {"loss/train", "lr/train", "share_of_time/forward", "cores/train"} <= set(tags)
        assert [event.step for event in events.Scalars("loss/train")] == [1, 2, 3]
        assert events.Scalars("lr/train")[0].value == 0.5
        whole = sum(events.Scalars(tag)[0].value for tag in tags if tag.startswith("share_of_time/"))
        assert whole == pytest.approx(1, abs=1e-4)


def test_events_that_cannot_be_written_leave_no_run(monkeypatch, tmp_path):
    with pytest.raises(saturate.Error, match="out="):
        saturate.watch(tensorboard=True)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(saturate.Error, match="package tensorboard"):
        saturate.watch(out=tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()
    with saturate.watch(out=tmp_path / "run"):
        pass
