"""Sources in object stores. Needs pytest."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import time
from socket import socket

import saturate
from sample_sets import PNG

SERVER = pathlib.Path(__file__).resolve().parents[2] / "tools/peers/store_server.py"
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


def bytes_sent(folder, epochs, wait_s=1):
    """Bytes that a server of the folder sends while a loader reads one epoch, and in the wait_s after it."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, SERVER, folder, "127.0.0.1", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "ready\n"
        with saturate.Loader(f"tar:http://127.0.0.1:{port}/a.tar", batch=4, size=8, epochs=epochs) as loader:
            assert sum(len(labels) for _, labels in loader) == 40
            time.sleep(wait_s)
        server.terminate()
        return json.loads(server.communicate(timeout=30)[0])["bytes"]
    finally:
        server.kill()


def test_the_next_epoch_is_fetched_if_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "large.png").write_bytes(PNG.read_bytes() + bytes(100_000))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(40):
            archive.add(tmp_path / "large.png", f"{number % 2}/{number}.png")
    images = (tmp_path / "a.tar").stat().st_size
    assert bytes_sent(tmp_path, 1) < 1.5 * images > bytes_sent(tmp_path, None)
    assert any(bytes_sent(tmp_path, 2, wait_s) > 1.5 * images for wait_s in (0.2, 2, 20))
