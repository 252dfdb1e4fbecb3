#!/usr/bin/env python3
"""A TCP proxy that adds a round trip to every request and to opening a connection, for store_link.py.

    tools/peers/delay_proxy.py LISTEN_ADDRESS PORT TARGET_ADDRESS TARGET_PORT DELAY_MS

It connects to the target, and begins to read from the client, DELAY_MS after it has accepted. It forwards what it has
read DELAY_MS later. So each reply is one delay late, and the first reply of a connection two delays, as over a link of
this round-trip time. It forwards what the target sends at once, from socket to socket within the kernel (splice), so
that the rate stays as it is. Prints "ready" when it listens. SIGTERM ends it. Needs Linux and Python 3.10.
"""

import collections
import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import time
from select import EPOLLIN, EPOLLOUT

PIPE = 1 << 20
KEPT = 16 << 20  # bytes from one client, at most


class Pair:
    """A client's connection and the one to the target."""

    def __init__(self, proxy, client):
        self.proxy, self.client, self.target = proxy, client, socket.socket()
        self.pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # the user's limit for pipes is reached: the pipe keeps its size
            fcntl.fcntl(self.pipe[1], fcntl.F_SETPIPE_SZ, PIPE)
        self.due, self.kept, self.piped = bytearray(), 0, 0
        self.client_ended = self.end_is_due = self.target_ended = self.closed = False
        for link in (client, self.target):
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def open(self):
        with contextlib.suppress(BlockingIOError):
            self.target.connect(self.proxy.target)

    def receive(self):
        with contextlib.suppress(BlockingIOError):
            data = self.client.recv(1 << 16)
            self.kept += len(data)
            self.client_ended = not data
            self.proxy.later(self.pass_on, data)

    def pass_on(self, data):
        self.due += data
        self.end_is_due = not data
        self.send()

    def send(self):
        with contextlib.suppress(BlockingIOError):
            while self.due:
                sent = self.target.send(self.due)
                del self.due[:sent]
                self.kept -= sent
        if self.end_is_due and not self.due:
            self.target.shutdown(socket.SHUT_WR)

    def fill(self):
        with contextlib.suppress(BlockingIOError):
            self.piped = os.splice(self.target.fileno(), self.pipe[1], PIPE, flags=os.SPLICE_F_NONBLOCK)
            self.target_ended = not self.piped
            self.drain()

    def drain(self):
        with contextlib.suppress(BlockingIOError):
            while self.piped:
                self.piped -= os.splice(self.pipe[0], self.client.fileno(), self.piped, flags=os.SPLICE_F_NONBLOCK)
        if self.target_ended and not self.piped:
            self.client.shutdown(socket.SHUT_WR)

    def handle(self, link, events):
        if link is self.client:
            if self.piped:
                self.drain()
            if events & ~EPOLLOUT and not self.client_ended:
                self.receive()
        else:
            if self.due:
                self.send()
            if events & ~EPOLLOUT and not self.piped and not self.target_ended:
                self.fill()

    def attempt(self, what, *arguments):
        """A step. After an error, or when both sides have ended, it closes both."""
        try:
            if not self.closed:
                what(*arguments)
            if self.end_is_due and self.target_ended and not self.due and not self.piped:
                self.close()
        except OSError:
            self.close()
        if not self.closed:
            self.watch()

    def watch(self):
        """Waits for what the next step needs: the target is not read while the pipe has something for the client."""
        reads = not self.client_ended and self.kept < KEPT
        self.proxy.watch(self, self.client, EPOLLIN * reads | EPOLLOUT * bool(self.piped))
        reads = not self.target_ended and not self.piped
        self.proxy.watch(self, self.target, EPOLLIN * reads | EPOLLOUT * bool(self.due))

    def close(self):
        if self.closed:
            return
        self.closed = True
        for link in (self.client, self.target):
            self.proxy.watch(self, link, 0)
            link.close()
        for end in self.pipe:
            os.close(end)


class Proxy:
    def __init__(self, address, target, delay):
        self.target, self.delay = target, delay
        self.listener = socket.create_server(address, backlog=1024)
        self.listener.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.listener, EPOLLIN)
        self.watched, self.waiting = {}, collections.deque()  # all have the same delay: first in, first out

    def later(self, what, *arguments):
        self.waiting.append((time.monotonic() + self.delay, what, arguments))

    def watch(self, pair, link, events):
        """A socket without events is unregistered, since epoll always reports EPOLLHUP."""
        number = link.fileno()
        before = self.watched[number][0] if number in self.watched else 0
        if events == before:
            return
        if not events:
            del self.watched[number]
            self.poll.unregister(number)
            return
        self.watched[number] = (events, pair, link)
        (self.poll.modify if before else self.poll.register)(number, events)

    def accept(self):
        with contextlib.suppress(OSError):
            client, _ = self.listener.accept()
            pair = Pair(self, client)
            self.later(pair.open)

    def run(self):
        while True:
            if self.waiting:  # select waits more precisely than epoll, whose time is in milliseconds
                select.select([self.poll], [], [], max(0, self.waiting[0][0] - time.monotonic()))
            for number, events in self.poll.poll(0 if self.waiting else None):
                if number == self.listener.fileno():
                    self.accept()
                elif number in self.watched:
                    _, pair, link = self.watched[number]
                    pair.attempt(pair.handle, link, events)
            now = time.monotonic()
            while self.waiting and self.waiting[0][0] <= now:
                _, what, arguments = self.waiting.popleft()
                what.__self__.attempt(what, *arguments)


def main():
    address, port, target, target_port, delay_ms = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection has four file descriptors
    proxy = Proxy((address, int(port)), (target, int(target_port)), float(delay_ms) / 1000)
    print("ready", flush=True)
    proxy.run()


if __name__ == "__main__":
    main()
