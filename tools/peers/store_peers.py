#!/usr/bin/env python3
"""Streaming loaders and saturate's on the same photographs from one object store on this machine, interleaved.

    tools/peers/store_peers.py --data FOLDER --work FOLDER [--saturate build/saturate] [--images 2000] [--shards 20]
        [--server own|nginx|moto] [--cases fast=10000:0,gigabit=1000:0,slow=100:0,late=10000:20] [--many 1000]
        [--many-cases fast,late] [--only NAME,...] [--threads 2] [--rounds 5] [--seconds 30] [--json FILE]

Each reads one epoch, decodes, crops at random and resizes to 224 pixels, flips and normalises to batches of 64 in fp32,
with --threads processes (saturate: threads). Every measurement begins without a cache, in a new process and two new
network namespaces: one for the loader and one for the server, joined by a virtual cable whose rate tc limits (tbf,
both ways). A case is NAME=MBIT/S:MS; every request, and the opening of a connection, takes MS longer, as over a link
of this round trip time. A proxy before the server does that (delay_proxy.py), so that no kernel module is needed. It
does not imitate the slow start of a connection to a distant server. --server is one of

- own: store_server.py, S3 and plain HTTP in one thread
- nginx: files by one process, with sendfile; bytes and requests are counted from its log. It passes what is not a file,
  such as lists, on to the own server
- moto: an S3 server in Python, which copies the whole object for each range, and so limits the rate of every loader. It
  closes the connection after each reply, so that a request has the delay twice. It counts neither bytes nor requests
  (null). The link is measured with the own server

Rows are

- images per second from the first batch to the end of the epoch, or for --seconds, with bytes for each image and
  requests as the server counted them; `of_bound` of saturate's is the share of min(link, its rate from local files),
  and `of_local_cpu` the CPU time of its process for an image from local files over that from the store, which is the
  share that it would reach if CPU time bounded both and the server were elsewhere
- seconds to the first batch, from before the loader is made, after all imports; also with --many shards
- the link's bytes per second, by curl, and saturate's rate from local files (in the page cache), before each case

The data are written below --work at first use, and kept: --data has one folder of JPEG files for each class, which are
repeated under other names up to --images. Needs root, iproute2, util-linux and curl; nginx for --server nginx, and
`pip install "moto[s3,server]"` for moto. Peers that are not installed are named and skipped. Install them into a
separate environment:

    python3 -m venv build/peers
    build/peers/bin/pip install torch torchvision litdata s3fs mosaicml-streaming webdataset datasets aiohttp ./python

MosaicML Streaming 0.13 asks for older packages than the others; `pip install --no-deps` and what it then imports
(catalogue, zstd, python-snappy, brotli, transformers, matplotlib, paramiko) works with torch 2.15 and numpy 2.5.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

import peer_report
from store_formats import prepare, size_of
from store_link import CLIENT, ENDPOINT, SERVERS, missing_server, store
from store_worker import BATCH, FORMATS, PEERS

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import nginx_server
from net_hosts import Host, missing, parse_links

PROBE = 256 << 20
CASES = "fast=10000:0,gigabit=1000:0,slow=100:0,late=10000:20"
START_LIMIT = 300  # seconds; datasets asks for 2,000 objects one after another
LOCAL = [name for name in PEERS if name.startswith("saturate")]
USUAL = [name for name in PEERS if name != "saturate_block"]
PACKAGES = ("torch", "torchvision", "saturate", "litdata", "mosaicml-streaming", "webdataset", "datasets", "boto3",
            "obstore", "s3fs", "fsspec", "aiohttp", "numpy", "moto")
NOTE = ("One machine runs server ({}) and loaders. The link is shaped by tc tbf in network namespaces; a delay is "
        "added to each request, and to the opening of a connection, by a proxy before the server. Caches are deleted "
        "before every measurement. The server's files, and those of local rows, are in the page cache.")


def place_of(form, which="few"):
    """The folder of a format below the bucket."""
    return "folder" if form == "folder" else f"{which}/{form}"


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.served = arguments.work / f"served-{arguments.images}-{arguments.shards}-{arguments.many}"
        self.bucket = self.served / "bucket"
        self.shards = {"few": arguments.shards, "many": arguments.many}
        self.found, self.skipped = {}, {}

    def prepare(self):
        lost = prepare(self.bucket, self.arguments.data, self.arguments.images, self.shards,
                       str(self.arguments.saturate))
        for peer in list(self.arguments.only):
            if FORMATS[peer] in lost:
                self.skip(peer, "all cases", f"its data cannot be written: {lost[FORMATS[peer]]}")
                self.arguments.only.remove(peer)
        with open(self.bucket / "probe", "wb") as file:
            file.truncate(PROBE)
        with open(self.bucket / "probe", "rb") as file:
            while file.read(1 << 20):  # into the page cache
                pass
        self.bytes = {form: size_of(self.bucket / place_of(form)) / self.arguments.images
                      for form in {FORMATS[peer] for peer in self.arguments.only}}

    def skip(self, peer, case, reason):
        print(f"{peer}, {case}: skipped: {reason}", file=sys.stderr)
        self.skipped[f"{peer}, {case}"] = reason

    def link(self, mbit):
        """Bytes per second that curl gets, for about half a second."""
        most = min(PROBE, int(mbit * 1e6 / 8 / 2))
        with store("nginx" if self.arguments.server == "nginx" else "own", self.served, mbit, 0, "") as (client, _):
            said = client.run(["curl", "-sSf", "-o", "/dev/null", "-r", f"0-{most - 1}", "-w", "%{speed_download}",
                               f"{ENDPOINT}/bucket/probe"])
        return float(said)

    def loader(self, host, peer, endpoint, which, first_only):
        cache, log = self.arguments.work / "cache", self.arguments.work / "log"
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()
        result = self.arguments.work / "result.json"
        result.unlink(missing_ok=True)
        spec = {"peer": peer, "bucket": str(self.bucket), "endpoint": endpoint, "set": which,
                "shards": self.shards[which], "threads": self.arguments.threads, "cache": str(cache),
                "result": str(result), "seconds": self.arguments.seconds, "first_only": first_only}
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        with open(log, "w+", encoding="utf-8") as file:
            process = host.start([sys.executable, HERE / "store_worker.py", json.dumps(spec)], stdout=file, stderr=file,
                                 env=environment)
            try:
                process.wait(self.arguments.seconds + START_LIMIT)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"it took over {self.arguments.seconds + START_LIMIT:.0f} s") from None
            file.seek(0)
            lines = [line for line in file.read().splitlines() if line.strip()]
        if not result.exists():
            errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
            raise RuntimeError((errors or lines or [f"exit status {process.returncode}"])[-1])
        found = json.loads(result.read_text(encoding="utf-8"))
        if found["whole"] and found["images"] < self.arguments.images - self.arguments.threads * BATCH:
            raise RuntimeError(f"images are missing from its epoch, which has {found['images']}")
        later = found["images"] - found["first_images"]
        return found | {"rate": later / (found["seconds"] - found["first_s"]) if later else None}

    def measure(self, peer, case, which="few"):
        key = (peer, case, which)
        said = case if which == "few" else f"{case}, {self.arguments.many} shards"
        if f"{peer}, {said}" in self.skipped:
            return
        try:
            if case == "local":
                with Host(CLIENT) as host:
                    found = self.loader(host, peer, "", which, False)
            else:
                prefix = place_of(FORMATS[peer], which)
                with store(self.arguments.server, self.served, *self.arguments.cases[case], prefix) as (host, stop):
                    found = self.loader(host, peer, ENDPOINT, which, which == "many")
                    found |= {"server": stop()}
            self.found.setdefault(key, []).append(found)
        except RuntimeError as error:
            self.skip(peer, said, str(error))

    def round(self, number):
        """All measurements once; the first peer is another one in each round."""
        begin = number % max(1, len(self.arguments.only))
        peers = self.arguments.only[begin:] + self.arguments.only[:begin]
        for case, (mbit, _) in self.arguments.cases.items():
            self.found.setdefault(("link", case, ""), []).append(self.link(mbit))
            for peer in peers:
                if peer in LOCAL:  # right before, since the machine's speed changes within a round
                    self.measure(peer, "local")
                self.measure(peer, case)
                if case in self.arguments.many_cases and FORMATS[peer] != "folder":
                    self.measure(peer, case, "many")


def shares(bench, peer, case, rates):
    """In each round the rate over min(link, rate from local files), which was measured right before it; CPU time too."""
    cases = list(bench.arguments.cases)
    before = bench.found.get((peer, "local", "few"), [])[cases.index(case)::len(cases)]
    local = [each["rate"] for each in before]
    links = [link / bench.bytes[FORMATS[peer]] for link in bench.found[("link", case, "")]]
    if len(local) != len(rates) or len(links) != len(rates) or None in local:
        return {}
    bounds = [min(pair) for pair in zip(links, local)]
    here, there = ([each["cpu_s"] / (each["images"] - each["first_images"]) for each in found]
                   for found in (before, bench.found[(peer, case, "few")]))
    return {"bound_images_per_s": statistics.median(bounds),
            "cpu_ms_per_image": 1e3 * statistics.median(there), "local_cpu_ms_per_image": 1e3 * statistics.median(here),
            "of_local_cpu": statistics.median(a / b for a, b in zip(here, there)),
            "of_bound": statistics.median(rate / bound for rate, bound in zip(rates, bounds))}


def counts(found):
    served = [each["server"] for each in found]
    cpu = {"server_cpu_share": statistics.median(one["cpu_s"] / each["seconds"] for one, each in zip(served, found))}
    if "bytes" not in served[0]:  # moto
        return dict.fromkeys(("bytes_per_image", "requests", "connections")) | cpu
    return {"bytes_per_image": statistics.median(one["bytes"] / each["images"] for one, each in zip(served, found)),
            "requests": statistics.median(one.get("requests", 0) for one in served),
            "connections": statistics.median(one.get("connections", 0) for one in served)} | cpu


def rows_of(bench, key, found):
    peer, case, which = key
    if peer == "link":
        return [peer_report.with_spread({"name": f"link by curl, {case}", "unit": "MB/s"}, [it / 1e6 for it in found])]
    name = f"{peer.replace('_', ' ')}, {case}"
    about = {"peer": peer, "case": case, "format": FORMATS[peer], "shards": bench.shards[which],
             "threads": bench.arguments.threads}
    if case != "local":
        about |= dict(zip(("mbit_per_s", "delay_ms"), bench.arguments.cases[case]))
    rates, rows = [each["rate"] for each in found], []
    if which == "few" and None not in rates:
        row = {"name": name, "unit": "images/s", **about, "whole_epochs": all(each["whole"] for each in found),
               "images": statistics.median(each["images"] for each in found),
               "type": found[0]["type"], "file_bytes_per_image": bench.bytes[FORMATS[peer]],
               "with_start_images_per_s": statistics.median(each["images"] / each["seconds"] for each in found)}
        if case != "local":
            row |= counts(found) | (shares(bench, peer, case, rates) if peer in LOCAL else {})
        rows.append(peer_report.with_spread(row, rates))
    if case != "local":
        row = {"name": f"{name}, first batch" + (f" of {bench.shards['many']} shards" if which == "many" else ""),
               "unit": "s", **about, "requests": counts(found)["requests"]}
        rows.append(peer_report.with_spread(row, [each["first_s"] for each in found]))
    return rows


def versions(server):
    found = {"python": platform.python_version()} | ({"nginx": nginx_server.version()} if server == "nginx" else {})
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for data and caches; may be kept")
    parser.add_argument("--saturate", type=pathlib.Path, default=peer_report.ROOT / "build/saturate")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--server", choices=SERVERS, default="own")
    parser.add_argument("--cases", type=parse_links, default=CASES, help=f"default: {CASES}")
    parser.add_argument("--many", type=int, default=1000, help="shards for the time to the first batch")
    parser.add_argument("--many-cases", type=lambda text: text.split(","), default="fast,late")
    parser.add_argument("--only", type=lambda text: text.split(","), default=",".join(USUAL))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="from the first batch, at most")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    arguments.work, arguments.saturate = arguments.work.resolve(), arguments.saturate.resolve()
    return arguments


def main():
    arguments = parse_arguments()
    why = missing() or missing_server(arguments.server)
    if why:
        print(f"skipped: {why}", file=sys.stderr)
        sys.exit(77)
    bench = Bench(arguments)
    bench.prepare()
    for number in range(arguments.rounds):
        began = time.monotonic()
        bench.round(number)
        print(f"round {number + 1} of {arguments.rounds}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    rows = [row for key, found in bench.found.items() for row in rows_of(bench, key, found)]
    peer_report.write("store_peers", rows, arguments.json, peer_report.commit_of(arguments.saturate),
                      note=NOTE.format(SERVERS[arguments.server]), versions=versions(arguments.server),
                      skipped=bench.skipped, images=arguments.images)


if __name__ == "__main__":
    main()
