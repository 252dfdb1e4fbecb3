"""Sources in object stores that are away. Needs pytest."""

import os
import signal
import subprocess
import sys
import time
from socket import socket

SCRIPT = """
import saturate, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # as it is not in the background of a script
print("begins", flush=True)
try:
    saturate.Loader(sys.argv[1], batch=4, size=8, options={"data.timeout_s": 60})
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_opening_a_store_that_is_away():
    with socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    source = f"shard:http://127.0.0.1:{port}/x.shard"
    child = subprocess.Popen([sys.executable, "-c", SCRIPT, source], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "no_proxy": "127.0.0.1"})
    try:
        assert child.stdout.readline() == "begins\n"
        time.sleep(1)
        child.send_signal(signal.SIGINT)
        begin = time.monotonic()
        assert child.communicate(timeout=30)[0] == "interrupted\n"
        assert time.monotonic() - begin < 5
    finally:
        child.kill()
