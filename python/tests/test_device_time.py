"""A GPU's time by phase, from events on a fake GPU."""

from fake_gpu import FakeGpu

from saturate.device_time import RING, DeviceTime
from saturate.phases import BACKWARD, FORWARD, NAMES, OPTIMIZER, WAIT


def step(gpu, time, catch_up=True):
    for phase, milliseconds in ((WAIT, 0), (FORWARD, 2), (BACKWARD, 4), (OPTIMIZER, 1)):
        time.mark(phase)
        gpu.enqueued += milliseconds
    if catch_up:
        gpu.done = gpu.enqueued


def device_time(gpu):
    return DeviceTime(len(NAMES), gpu.event, lambda: not gpu.is_capturing)


def spent(time):
    sums = [whole + current for whole, current in zip(time.spent, time._current)]
    return {NAMES[i]: ns / 1e6 for i, ns in enumerate(sums) if ns}


def test_a_gpu_s_time_is_read_once_it_has_passed_the_events():
    gpu = FakeGpu()
    time = device_time(gpu)
    for number in range(3):
        step(gpu, time, catch_up=False)
        time.end_step(True)
        assert spent(time) == {}
    gpu.done = 9  # within the second step's forward
    step(gpu, time, catch_up=False)
    time.end_step(True)
    assert spent(time) == {"forward": 4, "backward": 4, "optimizer": 1}
    gpu.done = gpu.enqueued
    time.end_step(True)
    assert spent(time) == {"forward": 8, "backward": 16, "optimizer": 4} and time.steps == 4
    assert time._made <= 5 * 5


def test_events_of_two_streams_may_be_passed_in_another_order():
    gpu = FakeGpu()
    time = device_time(gpu)
    gpu.enqueued = 9  # another stream's, which is ahead
    time.mark(FORWARD)
    gpu.enqueued = 3
    time.mark(BACKWARD)
    gpu.enqueued = 5
    time.mark(WAIT)
    gpu.done = 5
    time.read()
    assert spent(time) == {}, "the first event is not passed"
    gpu.done = 9
    time.read()
    assert spent(time) == {"backward": 2}


def test_no_event_is_asked_for_while_a_graph_is_captured():
    gpu = FakeGpu()
    time = device_time(gpu)
    step(gpu, time)
    gpu.is_capturing = True
    time.end_step(True)
    time.read()
    gpu.is_capturing = False
    time.read()
    assert spent(time)["backward"] == 4


def test_steps_that_are_not_measured_cost_no_event():
    gpu = FakeGpu()
    time = device_time(gpu)
    step(gpu, time)
    time.end_step(False)
    before = gpu.recorded
    step(gpu, time)
    time.end_step(True)
    assert gpu.recorded == before
    step(gpu, time)
    time.end_step(True)
    time.read()
    assert spent(time) == {"forward": 4, "backward": 8, "optimizer": 2} and time.steps == 2


def test_a_gpu_that_is_far_behind_is_not_waited_for():
    gpu = FakeGpu()
    gpu.done = -1.0
    time = device_time(gpu)
    for _ in range(RING):
        step(gpu, time, catch_up=False)
        time.end_step(True)
    assert time._made == RING and gpu.recorded == RING
    gpu.done = gpu.enqueued
    time.read()
    whole, rest = divmod(RING - 1, 5)  # a step has five events; the last one's phase is not counted
    assert time.steps == whole + (rest > 0)
    assert sum(time.spent) / 1e6 == 7 * whole + sum((0, 2, 4, 1)[:max(0, rest)])
    step(gpu, time)
    time.end_step(True)
    time.read()
    assert spent(time)["optimizer"] == whole + 1


def test_a_graph_s_capture_gets_no_event():
    gpu = FakeGpu()
    time = device_time(gpu)
    gpu.is_capturing = True
    step(gpu, time)
    time.end_step(True)
    gpu.is_capturing = False
    step(gpu, time)
    time.end_step(True)
    assert spent(time) == {"forward": 2, "backward": 4, "optimizer": 1}


def test_an_event_that_fails_does_not_end_the_loop():
    gpu = FakeGpu()
    time = device_time(gpu)
    time.mark(FORWARD)
    gpu.is_capturing = True
    time._is_usable = lambda: True

    def failing(self):
        raise RuntimeError("CUDA error")

    event = gpu.event()
    event.record = failing.__get__(event)
    time._free.append(event)
    time.mark(BACKWARD)
    time.end_step(True)


def test_a_device_that_fails_is_not_asked_again():
    gpu = FakeGpu()
    time = device_time(gpu)
    time.mark(FORWARD)
    time.mark(BACKWARD)

    def failing():
        raise RuntimeError("CUDA error")

    time._placed[0][0].query = failing
    time.read()
    time.mark(OPTIMIZER)
    assert gpu.recorded == 2 and spent(time) == {}
