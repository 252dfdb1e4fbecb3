"""Folders of runs and files of ladders for report_page_test.py."""
import base64
import json
import math

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
HOSTILE = "</script><script>window.hit=1</script><img src=x onerror=window.hit=2>\u2028'\"&"
PHASES = ["wait", "copy", "augment", "forward", "backward", "reduce", "optimizer", "host", "checkpoint",
          "evaluation", "other"]
LONG = "shard:/scratch/groups/vision/datasets/imagenet-2012/packed/" + "a-long-name-without-a-space" * 4 + ".sat"


def write_run(folder, steps=60, speed=1.0, source="synth:count=100", end=True, stream=None, first_loss=None):
    """A run of `steps` records with an evaluation after every 20, of which the first may have another
    loss; on a GPU if `stream` is given."""
    folder.mkdir(parents=True)
    lines, time_s = [], 0.0

    def add(kind, step, **values):
        line = {"kind": kind, "step": step, "epoch": step / 200, "samples": step * 10, "time_s": time_s}
        lines.append(json.dumps({**line, **values}))

    for i in range(1, steps + 1):
        phases = dict.fromkeys(PHASES, 0.0)
        phases.update(wait=0.1 * speed, forward=0.3 * speed, backward=0.6 * speed, optimizer=0.02)
        time_s += sum(phases.values())
        loss = 2.3 * math.exp(-i / 30)
        machine = {"cores": 1.5 + 0.3 * math.sin(i), "queue_batches": i % 4, "rss_bytes": 6e8 + i * 1e6,
                   "tflop_per_s": 0.2, "gpu_busy": 0.4 + 0.005 * i, "gpu_power_w": None,
                   "disk_read_bytes_per_s": 0.0}
        streams = {name: {"busy_s": 0.9 * speed, "idle_s": 0.1} for name in ("step", stream)} if stream else None
        add("step", i * 10, loss=loss, accuracy=1 - loss / 2.5, accuracy5=None, lr=0.1 * (1 - i / steps),
            telemetry=machine, streams=streams, images_per_s=100 / sum(phases.values()), phases=phases, memory_peak_bytes=500_000_000 + i * 10**6)
        if i % 20 == 0:
            time_s += 3
            add("eval", i * 10, loss=first_loss if first_loss and i == 20 else loss + 0.1, accuracy=0.9 - loss / 3, phases=None)
    if end:
        add("end", steps * 10, loss=0.5, accuracy=0.8, phases=None)
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    text = source.replace("\\", "\\\\").replace('"', '\\"')
    (folder / "recipe.toml").write_text(
        f'seed = 1\n[data]\nsource = "{text}"\n[model]\nname = "resnet9"\n[train]\nepochs = 3.0\n'
        f"batch = {int(10 * speed)}\n")
    (folder / "host.json").write_text(json.dumps({"cpu": source, "cores": "2"}))


def write_beside(folder, name="cat"):
    """Samples, mistakes, results by class and a trace of four steps, with `name` as every text."""
    (folder / "samples").mkdir()
    (folder / "samples/training-000.png").write_bytes(PNG)
    images = [{"file": "training-000.png", "labels": [{"class": name, "weight": 1}]}] * 5
    (folder / "samples/training.json").write_text(json.dumps({"step": 1, "images": images}))
    images = [{"file": "training-000.png", "class": name, "predicted": name, "probability": 0.9, "loss": 4.2,
               "name": name}] * 3
    (folder / "samples/mistakes.json").write_text(json.dumps({"step": 600, "images": images}))
    classes = [{"name": f"{name} {i}", "count": 40, "predicted": 40, "correct": 40 - 2 * i} for i in range(12)]
    confusion = [[i, j, 40 - 2 * i if i == j else 2 * i] for i in range(12) for j in (i, (i + 1) % 12) if i + j > 0]
    (folder / "classes.json").write_text(
        json.dumps({"step": 600, "counted": "images", "classes": classes, "confusion": confusion}))
    events = []
    for track, title in enumerate(["phases", "operators", name], 1):
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": track, "args": {"name": title}})

    def span(track, title, begin, length, category):
        events.append({"ph": "X", "name": title, "cat": category, "pid": 1, "tid": track, "ts": begin, "dur": length})

    for step in range(4):
        begin = step * 10000
        span(1, f"step {step + 7}", begin, 10000, "phase")
        for phase, at, length in (("wait", 0, 1000), ("forward", 1000, 3000), ("backward", 4000, 6000)):
            span(1, phase, begin + at, length, "phase")
        for call in range(20):
            span(2, "aten::conv2d", begin + 1000 + call * 400, 390, "operator")
            span(2, name, begin + 1000 + call * 400 + 10, 300, "operator")
            span(3, "sample", begin + call * 450, 440, "thread")
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))


def write_ladder(path, name="a ladder"):
    rungs = [{"name": name, "steps_per_s": 5.0, "images_per_s": 500.0, "gain_first": None, "skipped": None,
              "phases": {"wait": 0.6, "forward": 0.1, "backward": 0.2, "optimizer": 0.05, name: 0.05}},
             {"name": "faster", "set": ["data.threads=4"], "steps_per_s": 8.0, "images_per_s": 800.0,
              "gain_previous": 1.6, "gain_first": 1.6, "low": 1.5, "high": 1.7, "memory_peak_bytes": 10**9,
              "phases": {"wait": 0.2, "forward": 0.25, "backward": 0.45, "optimizer": 0.1},
              "skipped": None, "seed_figure": "2x"},
             {"name": "gpu", "steps_per_s": None, "skipped": f"needs a GPU {name}"}]
    path.write_text(json.dumps({"title": name, "set": ["train.batch=512"], "rungs": rungs}))


def write_records(folder, *records):
    """A run of only these records: (kind, values)."""
    folder.mkdir(parents=True)
    lines = [json.dumps({"kind": kind, **values}) + "\n" for kind, values in records]
    (folder / "metrics.jsonl").write_text("".join(lines))


def write_all(folder):
    """The pages that the tests open, by name."""
    write_run(folder / "plain")
    write_run(folder / "slower", speed=2.0, end=False)
    write_run(folder / "<img src=x onerror=window.hit=3>", source=HOSTILE)
    write_run(folder / "<b>bold", source=HOSTILE, speed=3.0)
    write_run(folder / "full", stream="copy")
    write_beside(folder / "full")
    write_run(folder / "long", source=LONG)
    write_run(folder / "wild", first_loss=80.0)
    write_run(folder / "hostile", stream=HOSTILE)
    write_beside(folder / "hostile", HOSTILE)
    write_records(folder / "empty")
    step = {"step": 10, "epoch": 0.1, "samples": 100, "time_s": 2, "loss": 1, "images_per_s": 50,
            "phases": {"wait": 1, "forward": 1}}
    write_records(folder / "far", ("step", {**step, "network_wait_s": 0.75}))
    write_records(folder / "older", ("step", step), ("end", {"step": 10, "time_s": 2}))
    write_records(folder / "failed", ("step", step), ("end", {"step": 10, "time_s": 2, "ended_by": "KeyError: <b>1"}))
    write_records(folder / "damaged", ("step", step), (3, {}))
    own = {"iou:road": 0.25, "totals": 3.0, "ladder": 4.0, "memory": 5.0}
    write_records(folder / "own", ("step", {**step, "memory_peak_bytes": 3 << 29, "metrics": [*own], **own}))
    write_records(folder / "table", ("step", step))
    (folder / "table/recipe.toml").write_text('[augment]\nsize = 0\n[model]\nname = "mlp"\n')
    write_records(folder / "hot", ("step", {**step, "telemetry": {"cores": 1.25, "gpu_busy": 0.42,
                                                                   "throttle_reasons": "<heat>"}}))
    write_records(folder / "gpu", ("step", {**step, "device_phases": {"forward": 0.75}}),
                  ("step", {**step, "step": 20, "time_s": 4, "device_phases": {"forward": 0.5}}))
    minute = {"step": 1234567, "epoch": 1, "time_s": 59.6, "loss": 0.5, "memory_peak_bytes": 3 << 29}
    write_records(folder / "minute", ("step", {**minute, "images_per_s": 1234.6, "phases": {"forward": 1}}),
                  ("eval", {**minute, "accuracy": 0.89694}), ("end", minute))
    write_records(folder / "hour", ("eval", {**minute, "time_s": 3599.6, "accuracy": 0.91694}),
                  ("end", {**minute, "time_s": 3599.6}))
    write_ladder(folder / "ladder.json")
    (folder / "bare.json").write_text(json.dumps({"title": "bare", "rungs": [{"name": "one", "steps_per_s": 2}]}))
    write_ladder(folder / "hostile.json", HOSTILE)
