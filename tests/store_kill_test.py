#!/usr/bin/env python3
"""Kills processes that load from a failing server, and compares what they loaded with an uninterrupted local run.

    tests/store_kill_test.py TESTS [--rounds N]

TESTS is saturate_data_tests, whose StoreProgram prints each batch's samples, labels and checksums of pixels. For each
of `shard:`, `folder:` (of a bucket) and `tar:` the loader runs as one to three processes, each with one to four threads,
until some of its batches have come; then all are killed by SIGKILL, and the next ones, of other numbers, go on at the
last batch that all had delivered. The server answers one request in twenty with a failure. At the end, the batches must
be those of the local source, loaded by one process with one thread: the same samples, labels and pixels. Half of the
rounds share a cache folder, which the killed processes leave as it is. The moments are drawn from a fixed seed.
"""

import argparse
import http.server
import os
import pathlib
import random
import re
import socketserver
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from xml.sax.saxutils import escape

EPOCHS = 3
SAMPLES = 240
FAILURES = 0.05


class Server(http.server.BaseHTTPRequestHandler):
    """Files of a folder: by ranges at /files/, and as the bucket "bucket"."""

    protocol_version = "HTTP/1.1"
    root = None
    lock, count = threading.Lock(), [0, 0]

    def log_message(self, *_):
        pass

    def fails(self):
        with self.lock:
            self.count[0] += 1
            draw = random.Random(self.count[0]).random()
            self.count[1] += draw < FAILURES
        if draw >= FAILURES:
            return False
        if draw < FAILURES / 3:
            self.close_connection = True
            self.connection.close()
        elif draw < 2 * FAILURES / 3:
            self.reply(503, b"<Error><Code>SlowDown</Code></Error>")
        else:  # fewer bytes than announced
            self.send_response(206)
            self.send_header("Content-Range", "bytes 0-9/10")
            self.send_header("Content-Length", "10")
            self.end_headers()
            self.wfile.write(b"12345")
            self.close_connection = True
        return True

    def reply(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        try:
            if not self.fails():
                self.answer()
        except (BrokenPipeError, ConnectionResetError, ValueError):  # the client was killed
            self.close_connection = True

    def answer(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        path = urllib.parse.unquote(url.path)
        if query.get("list-type") == "2":
            return self.list(query)
        file = self.root / path.split("/", 2)[2]
        if not file.is_file():
            return self.reply(404, b"")
        data = file.read_bytes()
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        last = min(last, len(data) - 1)
        self.reply(206, data[first:last + 1], ETag=f'"{len(data)}"',
                   Content_Range=f"bytes {first}-{last}/{len(data)}")

    def list(self, query):
        prefix, token = query["prefix"], query.get("continuation-token", "")
        keys = sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())
        keys = [key for key in keys if key.startswith(prefix)]
        if query.get("delimiter"):
            items = sorted({prefix + key[len(prefix):].split("/")[0] + "/" for key in keys if "/" in key[len(prefix):]})
            form = "<CommonPrefixes><Prefix>{0}</Prefix></CommonPrefixes>"
        else:
            items = keys
            form = "<Contents><Key>{0}</Key><ETag>&quot;{1}&quot;</ETag><Size>{1}</Size></Contents>"
        items = [item for item in items if item > token]
        page = items[:50]
        body = "".join(form.format(escape(item), 0 if item.endswith("/") else (self.root / item).stat().st_size)
                       for item in page)
        if len(items) > len(page):
            body += f"<IsTruncated>true</IsTruncated><NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        self.reply(200, f"<ListBucketResult>{body}</ListBucketResult>".encode())


class Threads(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):  # killed clients
        pass


def start(tests, environment, *words):
    return subprocess.Popen([tests, "--gtest_filter=StoreProgram.*"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            text=True, env=dict(environment, SATURATE_LOADER=" ".join(map(str, words))))


def batches_of(process, most):
    """The next batches of a process, at most that many: [(number, [sample, ...])]."""
    found = []
    while len(found) < most and (line := process.stdout.readline()):
        if line.startswith("batch "):
            number, *samples = line.split()[1:]
            found.append((int(number), samples))
    return found


def finish(process):
    while process.stdout.readline():
        pass
    if process.wait() != 0:
        raise SystemExit(f"FAILED: the loader ended with {process.returncode}")


def joined(parts, number):
    """A global batch: rank r has its samples r, r + world, ..."""
    world, whole = len(parts), []
    for i in range(sum(len(part[number]) for part in parts)):
        whole.append(parts[i % world][number][i // world])
    return whole


def killed_run(tests, environment, uri, cache, shuffle, total, draw, kills):
    """All batches, loaded by processes that are killed."""
    loaded, deaths = {}, 0
    while len(loaded) < total:
        first, world = len(loaded), draw.choice([1, 2, 3])
        last_round = deaths == kills
        most = total - first if last_round else draw.randint(1, max(1, (total - first) // 4))
        processes = [start(tests, environment, uri, cache, draw.choice([1, 2, 4]), rank, world, shuffle, first, EPOCHS)
                     for rank in range(world)]
        parts = [dict(batches_of(process, most)) for process in processes]
        for process in processes:
            if last_round:
                finish(process)
            else:
                process.kill()
                process.wait()
        deaths += not last_round
        for number in range(first, first + most):
            if any(number not in part for part in parts):
                raise SystemExit(f"FAILED: batch {number} did not come")
            loaded[number] = joined(parts, number)
    return [loaded[number] for number in range(total)], deaths


def make_files(tests, root):
    """A folder of images, a shard and two archives, by the tests' own helper."""
    environment = dict(os.environ, SATURATE_STORE_FILES=str(root), SATURATE_STORE_SAMPLES=str(SAMPLES))
    subprocess.run([tests, "--gtest_filter=StoreProgram.WritesTheFiles", "--gtest_brief=1"], check=True, env=environment,
                   stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests")
    parser.add_argument("--kills", type=int, default=20, help="for all sources together")
    arguments = parser.parse_args()
    tests = os.path.abspath(arguments.tests)
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch, "files")
        make_files(tests, root)
        Server.root = root
        server = Threads(("127.0.0.1", 0), Server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_address[1]}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        environment.update(AWS_ENDPOINT_URL=f"http://{host}", no_proxy="127.0.0.1", HOME=scratch,
                           AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_EC2_METADATA_DISABLED="true")
        draw = random.Random(1)
        sources = [("shard", f"http://{host}/files/a.shard", f"{root}/a.shard"),
                   ("folder", "s3://bucket/images", f"{root}/images"),
                   ("tar", f"http://{host}/files/{{0..1}}.tar", f"{root}/{{0..1}}.tar")]
        left = arguments.kills
        for i, (scheme, far, near) in enumerate(sources):
            kills = left // (len(sources) - i)
            left -= kills
            shuffle, cache = i % 2, f"{scratch}/cache" if i < 2 else "-"
            local = start(tests, environment, f"{scheme}:{near}", "-", 1, 0, 1, shuffle, 0, EPOCHS)
            expected = [samples for _, samples in batches_of(local, 10**6)]
            finish(local)
            if len(expected) != EPOCHS * SAMPLES // 12:
                raise SystemExit(f"FAILED: the local run has {len(expected)} batches")
            found, deaths = killed_run(tests, environment, f"{scheme}:{far}", cache, shuffle, len(expected), draw, kills)
            if found != expected:
                wrong = next(i for i, pair in enumerate(zip(found, expected)) if pair[0] != pair[1])
                raise SystemExit(f"FAILED: {scheme}: batch {wrong} is {found[wrong]}, not {expected[wrong]}")
            print(f"{scheme}: {len(found)} batches are those of the local run, over {deaths} kills")
        server.shutdown()
        print(f"{Server.count[0]} requests, {Server.count[1]} of them answered with failures")


if __name__ == "__main__":
    sys.exit(main())
