#!/usr/bin/env python3
"""tools/peers/delay_proxy.py: when requests and replies arrive, what arrives, and that no connection ends it."""

import concurrent.futures
import http.client
import http.server
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

PROXY = pathlib.Path(__file__).resolve().parent.parent / "tools/peers/delay_proxy.py"
sys.path.insert(0, str(PROXY.parent))
from store_link import cpu_seconds  # noqa: E402

DELAY_S = 0.1
BODY = os.urandom(1 << 20) * 50
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends a reset


class Echo(http.server.BaseHTTPRequestHandler):
    """Replies with the request's body, or with BODY to GET /body."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def reply(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(BODY if self.path == "/body" else self.headers["Host"].encode())

    def do_POST(self):
        self.reply(self.rfile.read(int(self.headers["Content-Length"])))


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass  # of clients that have gone


def memory(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@unittest.skipUnless(hasattr(os, "splice"), "needs Linux and Python 3.10")
class DelayProxy(unittest.TestCase):
    def setUp(self):
        self.server = Server(("127.0.0.1", 0), Echo)
        self.addCleanup(self.server.server_close)
        threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True).start()
        self.addCleanup(self.server.shutdown)
        self.start(self.server.server_address[1])

    def start(self, target):
        self.address = ("127.0.0.1", free_port())
        command = [sys.executable, PROXY, *self.address, "127.0.0.1", target, 1e3 * DELAY_S]
        self.proxy = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.proxy.communicate)
        self.addCleanup(self.proxy.kill)
        self.assertEqual(self.proxy.stdout.readline(), "ready\n")

    def connection(self):
        link = http.client.HTTPConnection(*self.address, timeout=30)
        self.addCleanup(link.close)
        return link

    def ask(self, link, path="/", body=None):
        """(seconds until the reply begins, its body)."""
        begin = time.monotonic()
        link.request("POST" if body else "GET", path, body)
        reply = link.getresponse()
        return time.monotonic() - begin, reply.read()

    def expect_it_serves(self):
        self.assertEqual(self.ask(self.connection(), body=b"still")[1], b"still")

    def test_a_new_connection_and_each_request_take_a_delay(self):
        link = self.connection()
        seconds, said = self.ask(link)
        self.assertEqual(said.decode(), "{}:{}".format(*self.address), "the header Host is the client's")
        self.assertGreaterEqual(seconds, 2 * DELAY_S)
        later = [self.ask(link)[0] for _ in range(4)]
        self.assertGreaterEqual(min(later), DELAY_S)
        self.assertLess(min(later), 1.5 * DELAY_S, "not more, but for a busy machine")

    def test_requests_do_not_wait_for_each_other(self):
        with socket.create_connection(self.address) as link:
            begin = time.monotonic()
            for _ in range(20):
                link.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                time.sleep(DELAY_S / 10)
            received = b""
            while received.count(b"\r\n\r\na") < 20:
                received += link.recv(1 << 16)
            self.assertGreaterEqual(time.monotonic() - begin, 2 * DELAY_S)
            self.assertLess(time.monotonic() - begin, 15 * DELAY_S)

    def test_large_bodies_arrive_whole(self):
        link = self.connection()
        seconds, body = self.ask(link, "/body")
        self.assertGreaterEqual(seconds, 2 * DELAY_S)
        self.assertTrue(body == BODY)
        self.assertTrue(self.ask(link, body=BODY)[1] == BODY, "from the client, kept in memory in between")
        self.assertLess(memory(self.proxy.pid), 100 << 20)

    def test_several_connections_at_once(self):
        def ask(number):
            link, body = self.connection(), bytes([number]) * 3_000_000
            return [self.ask(link, body=body)[1] == body for _ in range(2)] + [self.ask(link)[0]]

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for first, second, seconds in pool.map(ask, range(16)):
                self.assertTrue(first and second)
                self.assertGreaterEqual(seconds, DELAY_S)

    def test_a_reader_that_waits_costs_nothing_and_misses_nothing(self):
        link = self.connection()
        link.request("GET", "/body")
        time.sleep(2.5 * DELAY_S)
        before = cpu_seconds(self.proxy.pid)
        time.sleep(3 * DELAY_S)
        self.assertLessEqual(cpu_seconds(self.proxy.pid) - before, 0.05)
        self.expect_it_serves()
        self.assertTrue(link.getresponse().read() == BODY)
        self.assertLess(memory(self.proxy.pid), 60 << 20)

    def test_resets_end_only_their_connections(self):
        for path, wait in (("/body", 2.5), ("/body", 0.1), ("/", 1.5), (None, 0.5)):
            with socket.create_connection(self.address) as link:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                if path:
                    link.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                time.sleep(wait * DELAY_S)
        self.expect_it_serves()
        time.sleep(3 * DELAY_S)
        before = cpu_seconds(self.proxy.pid)
        time.sleep(3 * DELAY_S)
        self.assertLessEqual(cpu_seconds(self.proxy.pid) - before, 0.05)
        links = [path for path in pathlib.Path(f"/proc/{self.proxy.pid}/fd").iterdir()
                 if os.readlink(path).startswith(("socket", "pipe"))]
        self.assertLess(len(links), 10, "they are closed")

    def test_the_end_of_one_side_is_passed_on_alone(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.start(listener.getsockname()[1])
            with socket.create_connection(self.address) as link:
                begin = time.monotonic()
                link.sendall(b"all")
                link.shutdown(socket.SHUT_WR)
                with listener.accept()[0] as target:
                    self.assertGreaterEqual(time.monotonic() - begin, DELAY_S, "the opening has a delay")
                    self.assertEqual(target.recv(9, socket.MSG_WAITALL), b"all")
                    self.assertGreaterEqual(time.monotonic() - begin, 2 * DELAY_S)
                    target.sendall(b"late")
                    self.assertEqual(link.recv(4, socket.MSG_WAITALL), b"late")
                self.assertEqual(link.recv(9), b"")

    def test_a_target_that_is_away_ends_the_connection_only(self):
        self.start(free_port())
        for _ in range(2):
            with socket.create_connection(self.address, timeout=5) as link:
                self.assertEqual(link.recv(9), b"")

    def test_sigterm_ends_it(self):
        self.ask(self.connection())
        self.proxy.send_signal(signal.SIGTERM)
        self.assertEqual(self.proxy.wait(5), 0)


if __name__ == "__main__":
    unittest.main()
