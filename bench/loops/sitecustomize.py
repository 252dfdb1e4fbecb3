"""Every image takes as long to open as from a network, for bench/python_faults.py: cores are free meanwhile."""

import time

SECONDS = 0.0015


def _slow_down():
    try:
        from PIL import Image
    except ImportError:
        return
    opened = Image.open

    def open_slowly(*arguments, **named):
        time.sleep(SECONDS)
        return opened(*arguments, **named)

    Image.open = open_slowly


_slow_down()
