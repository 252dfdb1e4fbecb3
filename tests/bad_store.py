"""A store for tests that fails: the files of a folder by ranges at /files/, and as the bucket "bucket" of an S3 service
with lists and uploads in parts. It checks no signatures.

A share of the requests fails, each in another way (WAYS), drawn from a fixed seed. `rate` limits all replies together,
so that the link bounds a run. With `renew` set, keys expire after so many requests; new ones are in the file of
credentials before.
"""

import collections
import hashlib
import http.server
import os
import pathlib
import random
import re
import socket
import socketserver
import struct
import subprocess
import threading
import time
import urllib.parse
from xml.sax.saxutils import escape

WAYS = ("closed", "reset", "busy", "throttled", "short", "too long", "no range", "whole", "late")
LATE_S = 2
CHUNK = 32 << 10
KEY, SECRET = "AKIDTESTTESTTEST", "SECRETOFTHETEST/NEVERTOBEPRINTED"


def write_photographs(saturate, root, count):
    """Drawn images of 560 x 560 pixels, some 200 KB each, in root/a.tar, and root/a.shard with segments."""
    for source, out in ((f"synth:size=560,count={count},difficulty=1", f"tar:{root}/a.tar"),
                        (f"tar:{root}/a.tar", f"shard:{root}/a.shard")):
        subprocess.run([saturate, "data", "pack", source, "--out", out, "--threads", "2",
                        *(["--quality", "92"] if source.startswith("synth") else [])], check=True, capture_output=True)


class Names:
    """The host name store.test for this machine, in commands that run in a mount namespace: resolve() changes its
    /etc/hosts, and no DNS server is asked."""

    HOST = "store.test"

    def __init__(self, folder):
        self.hosts, nowhere = folder / "hosts", folder / "resolv.conf"
        self.resolve(True)
        nowhere.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        mounts = f"mount --bind {self.hosts} /etc/hosts && mount --bind {nowhere} /etc/resolv.conf"
        self.inside = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]  # then a command

    def can_be_used(self):
        """False without root and util-linux."""
        try:
            subprocess.run([*self.inside, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def resolve(self, yes):
        # In place: the file is mounted.
        self.hosts.write_text("127.0.0.1 localhost\n" + yes * f"127.0.0.1 {self.HOST}\n")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.respond()

    do_PUT = do_POST = do_DELETE = do_GET

    def respond(self):
        store = self.server
        try:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            if len(body) < length:  # the client was killed
                raise ConnectionResetError
            url = urllib.parse.urlsplit(self.path)
            path, query = urllib.parse.unquote(url.path), dict(urllib.parse.parse_qsl(url.query, True))
            way = store.note(self.command, path, self.headers)
            if way == "late":
                time.sleep(LATE_S)
            elif way:
                return self.fail(way, path)
            if self.command == "GET" and not query.keys() & {"list-type", "uploads", "uploadId"}:
                return self.send_range(path)
            status, text = store.bucket(self.command, path.removeprefix("/bucket/"), query, body)
            self.reply(status, text, ETag=f'"{hashlib.md5(body).hexdigest()}"')
        except (BrokenPipeError, ConnectionResetError):  # the client was killed
            self.close_connection = True

    def fail(self, way, path):
        if way in ("closed", "reset"):
            if way == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR) if way == "closed" else self.connection.close()
        if way == "expired":
            return self.reply(400, b"<Error><Code>ExpiredToken</Code></Error>")
        if way == "denied":
            return self.reply(403, b"<Error><Code>AccessDenied</Code></Error>")
        if way.startswith("echo"):
            return self.echo(way)
        if way == "throttled":
            return self.reply(429, b"", Retry_After="1")
        if way == "busy" or not self.headers.get("Range"):
            return self.reply(503, b"<Error><Code>SlowDown</Code></Error>")
        return self.send_range(path, way)

    def echo(self, way):
        """Repeats the token of the request where a message may show it."""
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        token = self.headers.get("x-amz-security-token") or query.get("X-Amz-Security-Token", "none")
        if way == "echo as code":
            return self.reply(400, f"<Error><Code>{token}</Code></Error>".encode())
        return self.reply(206, b"text", Content_Range=f"bytes {token}")

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_range(self, path, way=None):
        """`way`: "short", "too long", "no range", "whole" or None."""
        store = self.server
        file = store.root / path.split("/", 2)[2]
        if not file.is_file():
            return self.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
        size = file.stat().st_size
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        first, last = (0, size - 1) if way == "whole" else (first, min(last, size - 1))
        with open(file, "rb") as source:
            source.seek(first)
            data = source.read(last + 1 - first)
        self.send_response(200 if way == "whole" else 206)
        self.send_header("ETag", f'"{size}"')
        if way not in ("no range", "whole"):
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        if way == "too long":
            data += b"and more"
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if way == "short":
            data = data[:len(data) // 2]
            self.close_connection = True
        # The first byte is a header's: the time of the others is that of the link.
        for at in range(0, len(data), CHUNK):
            store.wait_for_link(min(CHUNK, len(data) - at))
            self.wfile.write(data[at:at + CHUNK])
        store.note_sent(len(data))


class Store(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, root, failures=0.0, rate=0, address="127.0.0.1", port=0):
        super().__init__((address, port), Handler)
        self.root, self.failures, self.rate = pathlib.Path(root), failures, rate
        self.lock = threading.Lock()
        self.counts = collections.Counter()  # requests, bytes, and failures by way
        self.ranges = []  # lengths
        self.is_away = False
        self.name = "127.0.0.1"
        self.way = None  # of all requests
        self.renew, self.token, self.credentials = 0, "", None
        self.uploads, self.link_free_at = {}, 0.0
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, *_):  # killed clients
        pass

    @property
    def host(self):
        return f"{self.name}:{self.server_address[1]}"

    def environment(self, scratch, token=""):
        """Variables for a command whose HOME is `scratch`, with keys in a file there."""
        self.credentials = pathlib.Path(scratch, "credentials")
        self.write_credentials(token)
        variables = {name: value for name, value in os.environ.items()
                     if not name.startswith("AWS_") and not name.lower().endswith("_proxy")}
        return dict(variables, AWS_ENDPOINT_URL=f"http://{self.host}", AWS_EC2_METADATA_DISABLED="true",
                    AWS_SHARED_CREDENTIALS_FILE=str(self.credentials), HOME=str(scratch), no_proxy="*")

    def write_credentials(self, token):
        self.token = token
        new = self.credentials.with_suffix(".new")
        new.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n" +
                       (f"aws_session_token = {token}\n" if token else ""))
        new.rename(self.credentials)

    def note(self, method, path, headers):
        """Counts a request. Returns the way in which it fails, or None."""
        with self.lock:
            self.counts["requests"] += 1
            number = self.counts["requests"]
            if found := re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("Range", "")):
                self.ranges.append(int(found[2]) + 1 - int(found[1]))
            if self.renew and number % self.renew == 0:
                self.write_credentials(f"token{number}")
            draw = random.Random(number)
            way = draw.choice(WAYS) if draw.random() < self.failures else None
            if path.startswith("/bucket") and self.token != headers.get("x-amz-security-token", ""):
                way = "expired"
            way = "closed" if self.is_away else self.way or way
            if way:
                self.counts[way] += 1
        return way

    def note_sent(self, length):
        with self.lock:
            self.counts["bytes"] += length

    def wait_for_link(self, length):
        if not self.rate:
            return
        with self.lock:
            self.link_free_at = max(self.link_free_at, time.monotonic()) + length / self.rate
            until = self.link_free_at
        time.sleep(max(0.0, until - time.monotonic()))

    def bucket(self, method, key, query, body):
        """Status and body of the reply to a request that is not for a range."""
        if query.get("list-type") == "2":
            return 200, self.list(query)
        upload = query.get("uploadId")
        with self.lock:
            if method == "GET" and upload:  # parts of an upload
                _, parts = self.uploads[upload]
                found = "".join(f"<Part><PartNumber>{number}</PartNumber><Size>{len(part)}</Size>"
                                f"<ETag>&quot;{hashlib.md5(part).hexdigest()}&quot;</ETag></Part>"
                                for number, part in parts.items())
                return 200, f"<ListPartsResult>{found}</ListPartsResult>".encode()
            if method == "GET":  # uploads that have begun
                found = "".join(f"<Upload><Key>{escape(key)}</Key><UploadId>{name}</UploadId></Upload>"
                                for name, (key, _) in self.uploads.items() if key.startswith(query.get("prefix", "")))
                return 200, f"<ListMultipartUploadsResult>{found}</ListMultipartUploadsResult>".encode()
            if method == "POST" and not upload:
                self.counts["uploads"] += 1
                name = f"upload{self.counts['uploads']}"
                self.uploads[name] = key, {}
                return 200, f"""<InitiateMultipartUploadResult><UploadId>{name}</UploadId>
                    </InitiateMultipartUploadResult>""".encode()
            if method == "PUT" and not upload:
                return self.keep(key, body)
            if upload not in self.uploads:
                return 404, b"<Error><Code>NoSuchUpload</Code></Error>"
            if method == "PUT":
                self.counts["parts"] += 1
                self.uploads[upload][1][int(query["partNumber"])] = body
                return 200, b""
            _, parts = self.uploads.pop(upload)
            if method == "DELETE":
                return 204, b""
            self.keep(key, b"".join(parts[number] for number in sorted(parts)))
        return 200, b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>"

    def keep(self, key, body):
        file = self.root / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        return 200, b""

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
        return f"<ListBucketResult>{body}</ListBucketResult>".encode()
