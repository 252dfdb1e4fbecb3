"""Prints, as JSON, the contents of a folder of event files as TensorBoard's own reader returns them.

Run: python tests/oracles/read_events.py FOLDER
"""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={TENSORS: 0, "scalars": 0, "images": 0, "histograms": 0})
events.Reload()
tags = events.Tags()


def histogram(event):
    value = event.histogram_value
    return {"step": event.step, "min": value.min, "max": value.max, "num": value.num,
            "counts": list(value.bucket), "edges": list(value.bucket_limit)}


print(json.dumps({
    "images": {tag: [[e.step, e.width, e.height] for e in events.Images(tag)] for tag in tags["images"]},
    "histograms": {tag: [histogram(e) for e in events.Histograms(tag)] for tag in tags["histograms"]},
    "scalars": {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags["scalars"]},
    "texts": {tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in tags["tensors"]},
    "plugins": {tag: events.SummaryMetadata(tag).plugin_data.plugin_name for tag in tags["tensors"]},
}))
