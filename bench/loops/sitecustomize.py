"""For bench/python_faults.py's loops on a CPU: an image takes longer to open, as from a network, and a model's forward
pass takes longer, as on a device. The cores are free meanwhile, so that a loop without a fault has nothing to gain.
"""

import os
import time

OPEN_S = 0.004
DEVICE_S = float(os.environ.get("PYTHON_FAULTS_DEVICE_MS", 3.5)) / 1e3  # of each image


def _slow_down_images():
    from PIL import Image

    opened = Image.open

    def open_slowly(*arguments, **named):
        time.sleep(OPEN_S)
        return opened(*arguments, **named)

    Image.open = open_slowly


def _slow_down_networks():
    from torch import nn

    def before_forward(module, inputs):
        if isinstance(module, nn.Conv2d) and module.in_channels == 3:  # the first layer
            time.sleep(DEVICE_S * len(inputs[0]))

    nn.modules.module.register_module_forward_pre_hook(before_forward)


for _change in (_slow_down_images, _slow_down_networks):
    try:
        _change()
    except ImportError:
        pass
