#!/usr/bin/env python3
"""A server of one folder of files, as the reading half of S3 and as plain HTTP, for store_peers.py.

    tools/peers/store_server.py FOLDER ADDRESS PORT [--delay-ms 0]

GET with ranges, HEAD and ListObjectsV2; /BUCKET/KEY is FOLDER/BUCKET/KEY. Signatures are not checked. One thread waits
for all sockets, and the kernel sends the files (sendfile), so that the server takes little of the measured machine.
Every reply begins --delay-ms after its request, however many wait. Prints "ready" when it listens. SIGTERM ends it; it
then prints what it has sent, as JSON.
"""

import argparse
import bisect
import collections
import heapq
import json
import os
import pathlib
import re
import select
import signal
import socket
import sys
import time
import urllib.parse
from xml.sax.saxutils import escape

RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)", re.IGNORECASE)
DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
LIST = ('<?xml version="1.0" encoding="UTF-8"?>\n'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{}</ListBucketResult>')
ERROR = ('<?xml version="1.0" encoding="UTF-8"?>\n'
         "<Error><Code>{0}</Code><Message>{0}</Message><Key>{1}</Key></Error>")


class Reply:
    """A head with a short body, and then a range of a file."""

    def __init__(self, status, headers, body=b"", path=None, first=0, length=0):
        fields = {"Content-Length": length if path else len(body)} | headers
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.head = f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body
        self.path, self.first, self.length = path, first, length


class Bucket:
    """The files below a folder, read once."""

    def __init__(self, root):
        paths = [path for path in pathlib.Path(root).rglob("*") if path.is_file()]
        self.root = root
        self.files = {f"/{path.relative_to(root).as_posix()}": path.stat() for path in paths}
        self.names = sorted(self.files)

    def etag(self, name):
        """As nginx makes it, for which store_link.py lists with this server."""
        return f'"{self.files[name].st_mtime_ns // 10**9:x}-{self.files[name].st_size:x}"'

    def reply(self, head):
        method, target, _ = head.split(b" ", 2)
        path, _, query = target.decode().partition("?")
        path, asked = urllib.parse.unquote(path), dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        if method not in (b"GET", b"HEAD"):
            return Reply("405 Method Not Allowed", {"Allow": "GET, HEAD"})
        if path in self.files:
            return self.object(method, path, RANGE.search(head))
        if "list-type" in asked and method == b"GET":
            return self.list(path.strip("/"), asked)
        if path.strip("/").count("/") == 0:  # a bucket, or its location
            body = b'<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>'
            return Reply("200 OK", {"x-amz-bucket-region": "us-east-1"}, b"" if method == b"HEAD" else body)
        body = ERROR.format("NoSuchKey", escape(path)).encode()
        return Reply("404 Not Found", {"Content-Type": "application/xml"}, b"" if method == b"HEAD" else body)

    def object(self, method, name, asked):
        size = self.files[name].st_size
        headers = {"ETag": self.etag(name), "Last-Modified": DATE, "Accept-Ranges": "bytes",
                   "Content-Type": "application/octet-stream"}
        first, last, status = 0, size - 1, "200 OK"
        if asked and (asked[1] or asked[2]):
            first = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
            last = min(size - 1, int(asked[2])) if asked[1] and asked[2] else size - 1
            if first > last:
                return Reply("416 Range Not Satisfiable", {"Content-Range": f"bytes */{size}"})
            status, headers["Content-Range"] = "206 Partial Content", f"bytes {first}-{last}/{size}"
        if method == b"HEAD":
            return Reply(status, headers | {"Content-Length": last - first + 1})
        return Reply(status, headers, path=self.root + name, first=first, length=last - first + 1)

    def list(self, bucket, asked):
        """One page. Its token is the last name, or the last common prefix, whose names are then skipped."""
        def quoted(text):
            return urllib.parse.quote(text) if asked.get("encoding-type") == "url" else escape(text)

        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        most, start = int(asked.get("max-keys", 1000)), f"/{bucket}/"
        after = asked.get("continuation-token") or asked.get("start-after", "")
        next_name = after + ("\uffff" if delimiter and after.endswith(delimiter) else "\0") if after else ""
        at = bisect.bisect_left(self.names, start + max(prefix, next_name))
        found, last = [], ""
        while at < len(self.names) and self.names[at].startswith(start + prefix) and len(found) < most:
            last = self.names[at][len(start):]
            end = last.find(delimiter, len(prefix)) if delimiter else -1
            if end >= 0:
                last = last[:end + len(delimiter)]
                found.append(f"<CommonPrefixes><Prefix>{quoted(last)}</Prefix></CommonPrefixes>")
                at = bisect.bisect_left(self.names, start + last + "\uffff", at)
                continue
            size = self.files[start + last].st_size
            found.append(f"<Contents><Key>{quoted(last)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                         f"<ETag>{escape(self.etag(start + last))}</ETag><Size>{size}</Size>"
                         "<StorageClass>STANDARD</StorageClass></Contents>")
            at += 1
        more = at < len(self.names) and self.names[at].startswith(start + prefix)
        begin = (f"<Name>{bucket}</Name><Prefix>{quoted(prefix)}</Prefix><KeyCount>{len(found)}</KeyCount>"
                 f"<MaxKeys>{most}</MaxKeys><IsTruncated>{'true' if more else 'false'}</IsTruncated>")
        if "encoding-type" in asked:
            begin += "<EncodingType>url</EncodingType>"
        if delimiter:
            begin += f"<Delimiter>{quoted(delimiter)}</Delimiter>"
        if more:
            begin += f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
        return Reply("200 OK", {"Content-Type": "application/xml"}, LIST.format(begin + "".join(found)).encode())


class Connection:
    def __init__(self, link):
        self.link, self.received, self.head, self.file = link, bytearray(), b"", None
        self.first = self.left = 0
        self.busy = False

    def begin(self, reply):
        self.head, self.first, self.left = reply.head, reply.first, reply.length
        self.file = os.open(reply.path, os.O_RDONLY) if reply.path else None

    def send(self, counts):
        """Whether the whole reply has been handed to the kernel."""
        try:
            while self.head:
                sent = self.link.send(self.head, socket.MSG_MORE if self.left else 0)
                self.head = self.head[sent:]
                counts["bytes"] += sent
            while self.left:
                sent = os.sendfile(self.link.fileno(), self.file, self.first, self.left)
                self.first, self.left = self.first + sent, self.left - sent
                counts["bytes"] += sent
        except BlockingIOError:
            return False
        self.close_file()
        return True

    def close_file(self):
        if self.file is not None:
            os.close(self.file)
        self.file = None


class Server:
    def __init__(self, bucket, address, port, delay):
        self.bucket, self.delay, self.counts = bucket, delay, collections.Counter()
        self.listener = socket.create_server((address, port), backlog=1024)
        self.listener.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.listener.fileno(), select.EPOLLIN)
        self.open, self.waiting, self.numbers = {}, [], 0
        self.cpu_before = time.process_time()  # reading the folder does not count

    def accept(self):
        try:
            link, _ = self.listener.accept()
        except BlockingIOError:
            return
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.counts["connections"] += 1
        self.open[link.fileno()] = Connection(link)
        self.poll.register(link.fileno(), select.EPOLLIN)

    def close(self, connection):
        self.open.pop(connection.link.fileno(), None)
        connection.close_file()
        connection.link.close()

    def read(self, connection):
        data = connection.link.recv(65536)
        if not data:
            return self.close(connection)
        connection.received += data
        if not connection.busy:
            self.next(connection)

    def next(self, connection):
        """Answers the next request, if it is complete."""
        end = connection.received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(connection.received[:end])
        del connection.received[:end + 4]
        connection.busy = True
        reply = self.bucket.reply(head)
        self.counts["requests"] += 1
        self.counts["lists" if b"list-type=" in head.split(b"\r\n", 1)[0] else head.split(b" ", 1)[0].decode()] += 1
        if self.delay:
            self.numbers += 1
            heapq.heappush(self.waiting, (time.monotonic() + self.delay, self.numbers, connection, reply))
        else:
            connection.begin(reply)
            self.send(connection)

    def send(self, connection):
        done = connection.send(self.counts)
        self.poll.modify(connection.link.fileno(), select.EPOLLIN if done else select.EPOLLOUT)
        if done:
            connection.busy = False
            self.next(connection)

    def attempt(self, what, connection):
        try:
            what(connection)
        except (ConnectionError, ValueError) as error:
            if isinstance(error, ValueError):
                print(f"bad request: {error}", file=sys.stderr)
            self.close(connection)

    def run(self):
        while True:
            now = time.monotonic()
            while self.waiting and self.waiting[0][0] <= now:
                _, _, connection, reply = heapq.heappop(self.waiting)
                if self.open.get(connection.link.fileno()) is connection:
                    connection.begin(reply)
                    self.attempt(self.send, connection)
            wait = max(0, self.waiting[0][0] - time.monotonic()) if self.waiting else None
            for number, event in self.poll.poll(wait):
                connection = self.open.get(number)
                if number == self.listener.fileno():
                    self.accept()
                elif connection:
                    self.attempt(self.send if event & select.EPOLLOUT else self.read, connection)

    def report(self, *_):
        counts = {name.lower(): count for name, count in self.counts.items()}
        print(json.dumps(counts | {"cpu_s": time.process_time() - self.cpu_before}), flush=True)
        os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--delay-ms", type=float, default=0)
    arguments = parser.parse_args()
    server = Server(Bucket(str(pathlib.Path(arguments.folder).resolve())), arguments.address, arguments.port,
                    arguments.delay_ms / 1000)
    signal.signal(signal.SIGTERM, server.report)
    print("ready", flush=True)
    server.run()


if __name__ == "__main__":
    main()
