"""The loops and faults of bench/python_faults.py."""

import dataclasses
from typing import List, Optional, Tuple

VISION = "https://raw.githubusercontent.com/pytorch/vision/v0.26.0/references/classification/"
SOURCES = {f"torchvision/{name}.py": f"{VISION}{name}.py"
           for name in ("train", "utils", "presets", "transforms", "sampler")}
SOURCES["timm/train.py"] = "https://raw.githubusercontent.com/huggingface/pytorch-image-models/v1.0.31/train.py"


@dataclasses.dataclass(frozen=True)
class Loop:
    """A script, and where faults go in its text."""

    name: str
    script: str
    arguments: List[str]  # {data}: the folder of images, {out}: one to write to
    step: str             # the text after which a step's optimizer has run
    model: str            # the model's name there
    begin: str            # a text before the loop, at the level of statements
    package: Optional[str] = None
    is_own: bool = True
    needs_gpu: bool = False


LOOPS = [
    Loop("bare", "bare.py", ["{data}/train"], "        optimizer.step()\n", "model", "for epoch in range(1000):\n"),
    Loop("gpu", "gpu.py", ["{data}/train"], "        optimizer.step()\n", "model", "for epoch in range(1000):\n",
         "torchvision", needs_gpu=True),
    Loop("lightning", "lightning_module.py", ["{data}/few"],
         "        loss = torch.nn.functional.cross_entropy(self.network(images), labels)\n", "self.network",
         "    trainer = lightning", "lightning"),
    Loop("accelerate", "accelerate_script.py", ["{data}/train"], "            optimizer.step()\n", "model",
         "    for epoch in range(1000):\n", "accelerate"),
    Loop("torchvision", "torchvision/train.py",
         ["--data-path", "{data}", "--model", "squeezenet1_1", "--device", "cpu", "--batch-size", "32", "--workers", "2",
          "--train-crop-size", "32", "--val-crop-size", "32", "--val-resize-size", "36", "--epochs", "1000",
          "--print-freq", "1000"],
         "        acc1, acc5 = utils.accuracy(output, target, topk=(1, 5))\n", "model",
         "    metric_logger = utils.MetricLogger(delimiter=\"  \")\n", "torchvision", is_own=False),
    Loop("timm", "timm/train.py",
         ["--data-dir", "{data}", "--train-split", "train", "--val-split", "val", "--num-classes", "8", "--model",
          "test_resnet", "--device", "cpu", "--batch-size", "32", "--workers", "2", "--img-size", "32", "--epochs",
          "1000", "--log-interval", "1000", "--no-prefetcher", "--val-interval", "1000", "--output", "{out}/output"],
         "        num_updates += 1\n", "trainable_module",
         "    second_order = hasattr(optimizer,", "timm", is_own=False),
]

# Texts that are put after a step, at its indentation; {m}: the model.
IN_STEP = {
    "item-in-loop": "next({m}.parameters()).detach().new_zeros(2_000_000).tolist()",
    "print-in-loop": "print(*(parameter.detach() for parameter in {m}.parameters()))",
    "logging": "__import__(\"logging\").getLogger(\"grads\").warning(\"%s\", torch.rand(100_000).tolist())",
    "checkpoint-saves": "torch.save(({m}.state_dict(), torch.zeros(8_000_000)), \"latest.pt\")",
}
# Texts that are put before the loop.
AT_BEGIN = {
    "anomaly-mode": "torch.autograd.set_detect_anomaly(True)",
    "threads": "torch.set_num_threads(16)",
}


@dataclasses.dataclass(frozen=True)
class Fault:
    loop: str
    cause: str                              # that diagnose has to name first
    arguments: Tuple[str, ...] = ()         # after the loop's; the last one of a name counts
    texts: Tuple[Tuple[str, str], ...] = ()  # (before, after) in place of a text of IN_STEP or AT_BEGIN
    others: Tuple[str, ...] = ()            # that are as right, such as the symptom of this cause

    @property
    def accepted(self):
        return (self.cause, *self.others)

    def edits(self, loop):
        if self.texts:
            return list(self.texts)
        if self.cause in IN_STEP:
            indent = loop.step[:len(loop.step) - len(loop.step.lstrip())]
            return [(loop.step, loop.step + indent + IN_STEP[self.cause].format(m=loop.model) + "\n")]
        if self.cause in AT_BEGIN:
            indent = loop.begin[:len(loop.begin) - len(loop.begin.lstrip())]
            return [(loop.begin, indent + AT_BEGIN[self.cause] + "\n" + loop.begin)]
        return []


def _fresh_workers(line):
    return ((line, line.replace("persistent_workers=True", "persistent_workers=False")),)


LOADER_LINE = "num_workers=2, persistent_workers=True,\n"
NO_WORKERS = ((LOADER_LINE, "num_workers=0,\n"),)
AUTOCAST = "torch.autocast(\"cuda\", torch.bfloat16)"
CHANNELS_LAST = ("model = model.to(memory_format=torch.channels_last)\n",
                 "        images = images.contiguous(memory_format=torch.channels_last)\n")
SLOW_ADAM = (("lr=1e-3, fused=True", "lr=1e-3"),)

FAULTS = [
    Fault("bare", "workers-too-few", ("--workers", "0"), others=("data-loading",)),
    Fault("bare", "logging"),
    Fault("bare", "item-in-loop"),
    Fault("bare", "anomaly-mode"),
    Fault("bare", "threads"),
    Fault("bare", "checkpoint-saves"),
    Fault("gpu", "workers-too-few", ("--workers", "1"), others=("data-loading",)),
    Fault("gpu", "item-in-loop"),
    Fault("gpu", "autocast-bf16", texts=((AUTOCAST, AUTOCAST.replace(")", ", enabled=False)")),),
          others=("autocast-fp16",)),
    Fault("gpu", "channels-last", texts=tuple((line, "") for line in CHANNELS_LAST)),
    Fault("gpu", "checkpoint-saves"),
    Fault("lightning", "persistent-workers", texts=_fresh_workers(LOADER_LINE)),
    Fault("lightning", "print-in-loop"),
    Fault("lightning", "checkpoint-saves"),
    Fault("lightning", "workers-too-few", texts=NO_WORKERS, others=("data-loading",)),
    Fault("accelerate", "workers-too-few", texts=NO_WORKERS, others=("data-loading",)),
    Fault("accelerate", "fused-optimizer", texts=SLOW_ADAM),
    Fault("accelerate", "logging"),
    Fault("accelerate", "checkpoint-saves"),
    Fault("torchvision", "workers-too-few", ("--workers", "0"), others=("data-loading",)),
    Fault("torchvision", "print-in-loop"),
    Fault("torchvision", "anomaly-mode"),
    Fault("timm", "workers-too-few", ("--workers", "0"), others=("data-loading",)),
    Fault("timm", "item-in-loop"),
    Fault("timm", "logging"),
]
