"""An object store and its readers on two hosts of this machine, joined by a link that tc shapes, for store_peers.py."""

import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import nginx_server
from net_hosts import Host, join

SERVER, CLIENT, PORT, LOCAL, LIST_PORT = "10.77.0.1", "10.77.0.2", 9000, "127.0.0.1", 9001
ENDPOINT = f"http://{SERVER}:{PORT}"
SERVERS = {"own": "store_server.py", "nginx": "nginx", "moto": "moto"}
NGINX = """listen {address}:{port}; root "{served}"; default_type application/octet-stream;
    sendfile on; tcp_nopush on; keepalive_requests 1000000;
    location / {{ try_files $uri @lists; }}
    location @lists {{ proxy_pass http://{local}:{lists}; }}"""


def missing_server(kind):
    """The reason why this server cannot be started here; None if it can."""
    if kind == "nginx" and not nginx_server.program():
        return "nginx is not installed (apt-get install nginx)"
    if kind == "moto" and not importlib.util.find_spec("moto"):
        return "moto is not installed (pip install 'moto[s3,server]')"
    return None


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def nginx(server, client, served, address):
    """Starts nginx, and store_server.py behind it for what is not a file: lists and buckets. Yields a function that
    ends both and returns the counts from nginx's log, with the CPU time of both."""
    lists = script(server, "store_server.py", served, LOCAL, LIST_PORT)
    with tempfile.TemporaryDirectory() as name, lists as stop_lists:
        folder = pathlib.Path(name)
        directives = NGINX.format(address=address, port=PORT, served=served, local=LOCAL, lists=LIST_PORT)
        process = server.start(nginx_server.command(folder, directives, "$connection $bytes_sent", "buffer=64k"))
        nginx_server.wait_until_ready(process, folder)

        def stop():
            client.kill()
            time.sleep(0.2)  # until nginx has logged the requests that ended with the client
            cpu_s = cpu_seconds(process.pid) + stop_lists()["cpu_s"]
            process.terminate()
            process.wait()
            lines = [line.split() for line in (folder / "log").read_text(encoding="utf-8").splitlines()]
            return {"requests": len(lines), "connections": len({number for number, _ in lines}),
                    "bytes": sum(int(sent) for _, sent in lines), "cpu_s": cpu_s}

        yield stop


@contextlib.contextmanager
def ready(server, name, *arguments):
    """Starts a script of this folder that prints "ready" when it listens. Yields the process."""
    process = server.start([sys.executable, HERE / name, *arguments], stdout=subprocess.PIPE, text=True)
    with process.stdout:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{name} did not start")
        yield process


@contextlib.contextmanager
def script(server, name, *arguments):
    """The same as `nginx` for a script that prints its counts as JSON when it gets SIGTERM."""
    with ready(server, name, *arguments) as process:

        def stop():
            process.terminate()
            return json.loads(process.stdout.readline())

        yield stop


@contextlib.contextmanager
def delayed(server, delay_ms, stop):
    """Starts the proxy before a server that listens at LOCAL, and that `stop` ends. Yields a function that ends both;
    the proxy's CPU time counts as the server's."""
    with ready(server, "delay_proxy.py", SERVER, PORT, LOCAL, PORT, delay_ms) as process:
        cpu_before = cpu_seconds(process.pid)

        def stop_both():
            cpu_s = cpu_seconds(process.pid) - cpu_before
            process.terminate()  # first, so that the server has no more connections
            process.wait()
            counts = stop()
            return counts | {"cpu_s": counts["cpu_s"] + cpu_s}

        yield stop_both


@contextlib.contextmanager
def store(kind, served, mbit, delay_ms, prefix):
    """(the readers' host, a function that ends the server and returns its counts). The server has the files of the
    folder `served`; moto only those below bucket/`prefix`, since it copies them into its memory first."""
    with Host(SERVER) as server, Host(CLIENT) as client, contextlib.ExitStack() as stack:
        join(server, client)
        for host in (server, client):
            host.shape(mbit)
        address = LOCAL if delay_ms else SERVER
        if kind == "nginx":
            started = nginx(server, client, served, address)
        elif kind == "moto":
            started = script(server, "store_moto.py", served, address, PORT, prefix)
        else:
            started = script(server, "store_server.py", served, address, PORT)
        stop = stack.enter_context(started)
        yield client, stack.enter_context(delayed(server, delay_ms, stop)) if delay_ms else stop
