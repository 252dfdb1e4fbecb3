#!/usr/bin/env python3
"""Reads shards and archives from nginx, over HTTP/1.1 and, with TLS, over HTTP/2, for `make s3-test`.

    tests/nginx_test.py --saturate build/saturate

A run must have the losses of one on the same files on the disk, and a copy made over the network their bytes. nginx's
log must have only ranges, and of a shard no byte twice but for late replies; of an archive once more, for its headers.
Each connection must serve several requests; over HTTP/2 all requests share few. A profile of the AWS command line may
name the certificate. As root, nginx is also on another host (a network namespace), behind a link of 1 Gbit/s with a
round trip of 20 ms. nginx is looked for in PATH, /usr/sbin and build/nginx. Exits with 77 and the reason if it, or
openssl, is missing.
"""

import argparse
import contextlib
import copy
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
sys.path += [str(ROOT / "tools"), str(ROOT / "tools/peers")]
import net_hosts
import nginx_server
import store_link
from bad_store import KEY, SECRET, write_photographs

FORMS = ("shard", "tar")
SLACK = 64 << 10  # bytes: a shard's header and index are read without a sample
MBIT, DELAY_MS = 1000, 20
RECIPE = """
augment.size = 32
model.name = "mlp"
train = {epochs = 1, batch = 16, threads = 1}
watch.every = 5
"""
SERVER = """listen 127.0.0.1:{plain};
    listen 127.0.0.1:{tls} ssl http2; http2_max_concurrent_streams 512;
    ssl_certificate {folder}/certificate; ssl_certificate_key {folder}/key;
    root {folder}/files;"""
LINE = "$server_protocol $status $body_bytes_sent $connection $request_uri"
PROFILE = """[default]
aws_access_key_id = {key}
aws_secret_access_key = {secret}
endpoint_url = https://localhost:{tls}
ca_bundle = {folder}/certificate
"""


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


class Runs:
    """Runs commands of saturate. All files are in one folder; nginx serves files/bucket below it."""

    def __init__(self, saturate, folder):
        self.saturate, self.folder, self.host, self.local = saturate, folder, None, {}
        own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.environment = own | {"AWS_CA_BUNDLE": str(folder / "certificate"),
                                  "no_proxy": f"localhost,{store_link.SERVER}"}

    def run(self, *arguments):
        """In self.host, if there is one: then paths must be absolute."""
        command = [self.saturate, *map(str, arguments)]
        if self.host:
            command = self.host.inside(command)
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, arguments))}: {done.stderr}")

    def losses(self, source, name):
        out = self.folder / name
        self.run("train", self.folder / "recipe.toml", "--out", out, "--set", f"data.source={source}",
                 f"data.eval_source={source}")
        records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        return [(record["kind"], record["loss"]) for record in records if record["kind"] in ("step", "eval")]

    def read_from_disk(self, form):
        source = f"{form}:{self.folder}/files/bucket/a.{form}"
        self.local[form] = self.losses(source, f"{form}-here")
        assert len(self.local[form]) > 3, self.local[form]
        self.run("data", "pack", source, "--out", f"shard:{self.folder}/{form}-here.shard")

    def expect_same_losses(self, form, source, name):
        assert self.losses(source, name) == self.local[form], f"{source}: other losses than from the disk"

    def expect_same_copy(self, form, source, name):
        copied, expected = self.folder / f"{name}.shard", self.folder / f"{form}-here.shard"
        self.run("data", "pack", source, "--out", f"shard:{copied}")
        assert copied.read_bytes() == expected.read_bytes(), source

    def take_log(self):
        """[(protocol, status, bytes, connection)] since the last call."""
        time.sleep(0.2)  # nginx writes a line after the reply
        lines = [line.split() for line in (self.folder / "log").read_text().splitlines()]
        (self.folder / "log").write_text("")
        return [(protocol, int(status), int(sent), connection) for protocol, status, sent, connection, _ in lines]


def connections_of(log):
    return len({entry[3] for entry in log})


def expect_ranges(runs, form, source, protocol):
    name, size = f"{form}-{protocol[5:]}", (runs.folder / f"files/bucket/a.{form}").stat().st_size
    runs.take_log()
    runs.expect_same_losses(form, source, name)
    log = runs.take_log()
    assert len(log) > 5 and {entry[:2] for entry in log} == {(protocol, 206)}, log[:20]
    # The epoch, and the evaluation after it. Headers of small images are near each other: opening an archive may read
    # all of it once. One request in ten may be a second one for a late range.
    sent = sum(entry[2] for entry in log)
    late = sum(sorted(entry[2] for entry in log)[-(len(log) // 10 + 1):])
    most = (2 if form == "shard" else 4) * (size + SLACK) + late
    assert sent <= most, f"{source}: {sent} bytes for twice {size}"
    # The request that opens the object shows that others may share its connection; a lost one is not shared again.
    connections = connections_of(log)
    assert protocol == "HTTP/1.1" or 8 * connections < len(log), (
        f"{source}: {connections} connections for {len(log)} requests")
    runs.expect_same_copy(form, source, name)
    print(f"{source}: {len(log)} requests over {connections} connections, {sent / size / 2:.2f} of the bytes")


def expect_kept_connections(runs, source):
    """The memory has room for five of its images."""
    runs.take_log()
    runs.run("train", runs.folder / "recipe.toml", "--out", runs.folder / "few", "--set", f"data.source={source}",
             "data.eval_source=", "data.read_ahead_mb=1", "data.threads=2", "train.epochs=2")
    log = runs.take_log()
    connections = connections_of(log)
    assert 4 * connections < len(log), f"{connections} connections for {len(log)} requests"
    print(f"{source}, a few images at a time: {len(log)} requests over {connections} connections")


def expect_certificate_of_profile(runs, tls):
    profile = runs.folder / "profile"
    profile.write_text(PROFILE.format(key=KEY, secret=SECRET, tls=tls, folder=runs.folder))
    with_profile = copy.copy(runs)
    with_profile.environment = runs.environment | {"AWS_CA_BUNDLE": "", "AWS_CONFIG_FILE": str(profile),
                                                   "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    with_profile.expect_same_copy("shard", "shard:s3://bucket/a.shard", "profile")
    print("s3:// with the certificate of a profile: the same bytes")


def expect_same_over_a_link(runs):
    why = net_hosts.missing() or (None if net_hosts.can_shape() else "the kernel has no tbf")
    if why:
        print(f"skipped nginx on another host: {why}", file=sys.stderr)
        return
    with store_link.store("nginx", runs.folder / "files", MBIT, DELAY_MS, "") as (client, _):
        there = copy.copy(runs)
        there.host = client
        for form in FORMS:
            source = f"{form}:{store_link.ENDPOINT}/bucket/a.{form}"
            there.expect_same_losses(form, source, f"{form}-link")
            there.expect_same_copy(form, source, f"{form}-link")
            print(f"{source}, {MBIT} Mbit/s and {DELAY_MS} ms: the same losses and bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saturate", type=pathlib.Path, required=True)
    saturate = parser.parse_args().saturate.resolve()
    if not nginx_server.program() or not shutil.which("openssl"):
        print("skipped: nginx or openssl is not installed", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runs = Runs(saturate, folder)
        for bucket in ("bucket", "large"):
            (folder / "files" / bucket).mkdir(parents=True)
        (folder / "recipe.toml").write_text(RECIPE)
        write_images(folder / "images")
        for form in FORMS:
            # Pixels, since small samples are read with those between them.
            raw = ["--raw-fraction", "1"] if form == "shard" else []
            runs.run("data", "pack", f"folder:{folder}/images", "--out", f"{form}:{folder}/files/bucket/a.{form}", *raw)
            runs.read_from_disk(form)
        with nginx(folder) as (plain, tls):
            for form in FORMS:
                for scheme, port, protocol in (("http", plain, "HTTP/1.1"), ("https", tls, "HTTP/2.0")):
                    expect_ranges(runs, form, f"{form}:{scheme}://localhost:{port}/bucket/a.{form}", protocol)
            write_photographs(saturate, folder / "files/large", 72)
            expect_kept_connections(runs, f"tar:http://localhost:{plain}/large/a.tar")
            expect_certificate_of_profile(runs, tls)
        expect_same_over_a_link(runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
