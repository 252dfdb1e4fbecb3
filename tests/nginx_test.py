#!/usr/bin/env python3
"""Reads shards and archives from nginx, over HTTP/1.1 and, with TLS, over HTTP/2, for `make s3-test`.

    tests/nginx_test.py --saturate build/saturate

A run must have the losses of one on the same files on the disk, and a copy made over the network their bytes. nginx's
log must have only ranges, and of a shard no byte twice but for late replies; of an archive once more, for its headers.
Each connection must serve several requests. nginx is looked for in PATH, /usr/sbin and build/nginx. Exits with 77 and
the reason if it, or openssl, is missing.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import nginx_server
from bad_store import write_photographs

SLACK = 64 << 10  # bytes: a shard's header and index are read without a sample
RECIPE = """
augment.size = 32
model.name = "mlp"
train = {epochs = 1, batch = 16, threads = 1}
watch.every = 5
"""
SERVER = """listen 127.0.0.1:{plain};
    listen 127.0.0.1:{tls} ssl http2;
    ssl_certificate {folder}/certificate; ssl_certificate_key {folder}/key;
    root {folder}/files;"""
LINE = "$server_protocol $status $body_bytes_sent $connection $request_uri"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def nginx(folder):
    """The ports for HTTP/1.1 and for HTTP/2."""
    plain, tls = free_port(), free_port()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                    "-keyout", folder / "key", "-out", folder / "certificate"], check=True, capture_output=True)
    directives = SERVER.format(folder=folder, plain=plain, tls=tls)
    with subprocess.Popen(nginx_server.command(folder, directives, LINE)) as server:
        try:
            nginx_server.wait_until_ready(server, folder)
            yield plain, tls
        finally:
            server.terminate()


def write_images(folder):
    images = sorted((ROOT / "tests/goldens/image/inputs").glob("exif_*.jpg"))
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for number in range(200):
            shutil.copy(images[number % len(images)], folder / label / f"{number}.jpg")


def expect_kept_connections(run, take_log, source):
    """The memory has room for five of its images."""
    take_log()
    run("train", "recipe.toml", "--out", "few", "--set", f"data.source={source}", "data.eval_source=",
        "data.read_ahead_mb=1", "data.threads=2", "train.epochs=2")
    log = take_log()
    connections = len({entry[3] for entry in log})
    assert 4 * connections < len(log), f"{connections} connections for {len(log)} requests"
    print(f"{source}, a few images at a time: {len(log)} requests over {connections} connections")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saturate", type=pathlib.Path, required=True)
    saturate = parser.parse_args().saturate.resolve()
    if not nginx_server.program() or not shutil.which("openssl"):
        print("skipped: nginx or openssl is not installed", file=sys.stderr)
        return 77

    def run(*arguments):
        environment = dict(os.environ, AWS_CA_BUNDLE=str(folder / "certificate"), no_proxy="localhost")
        done = subprocess.run([saturate, *arguments], env=environment, capture_output=True, text=True, cwd=folder)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, arguments))}: {done.stderr}")

    def losses(source, name):
        run("train", "recipe.toml", "--out", name, "--set", f"data.source={source}", f"data.eval_source={source}")
        records = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
        return [(record["kind"], record["loss"]) for record in records if record["kind"] in ("step", "eval")]

    def take_log():
        """[(protocol, status, bytes, connection)] since the last call."""
        time.sleep(0.2)  # nginx writes a line after the reply
        lines = [line.split() for line in (folder / "log").read_text().splitlines()]
        (folder / "log").write_text("")
        return [(protocol, int(status), int(sent), connection) for protocol, status, sent, connection, _ in lines]

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "files/large").mkdir(parents=True)
        (folder / "recipe.toml").write_text(RECIPE)
        write_images(folder / "images")
        # Pixels, since small samples are read with those between them.
        run("data", "pack", f"folder:{folder}/images", "--out", f"shard:{folder}/files/a.shard", "--raw-fraction", "1")
        run("data", "pack", f"folder:{folder}/images", "--out", f"tar:{folder}/files/a.tar")
        with nginx(folder) as (plain, tls):
            for form in ("shard", "tar"):
                path = folder / f"files/a.{form}"
                local = losses(f"{form}:{path}", f"{form}-here")
                assert len(local) > 3, local
                run("data", "pack", f"{form}:{path}", "--out", f"shard:{folder}/{form}-here.shard")
                for scheme, port, protocol in (("http", plain, "HTTP/1.1"), ("https", tls, "HTTP/2.0")):
                    source = f"{form}:{scheme}://localhost:{port}/a.{form}"
                    take_log()
                    assert losses(source, f"{form}-{scheme}") == local, f"{source}: other losses than from the disk"
                    log = take_log()
                    assert len(log) > 5 and {entry[:2] for entry in log} == {(protocol, 206)}, log[:20]
                    # The epoch, and the evaluation after it. Headers of small images are near each other: opening an
                    # archive may read all of it once. One request in ten may be a second one for a late range.
                    sent, size = sum(entry[2] for entry in log), path.stat().st_size
                    late = sum(sorted(entry[2] for entry in log)[-(len(log) // 10 + 1):])
                    most = (2 if form == "shard" else 4) * (size + SLACK) + late
                    assert sent <= most, f"{source}: {sent} bytes for twice {size}"
                    copy = f"{form}-{scheme}.shard"
                    run("data", "pack", source, "--out", f"shard:{folder}/{copy}")
                    assert (folder / copy).read_bytes() == (folder / f"{form}-here.shard").read_bytes(), source
                    print(f"{source}: {len(log)} requests, {sent / size / 2:.2f} of the bytes")
            write_photographs(saturate, folder / "files/large", 72)
            expect_kept_connections(run, take_log, f"tar:http://localhost:{plain}/large/a.tar")
    return 0


if __name__ == "__main__":
    sys.exit(main())
