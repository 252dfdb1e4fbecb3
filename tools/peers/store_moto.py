"""moto's S3 server with some of a folder's files, for store_peers.py.

    tools/peers/store_moto.py FOLDER ADDRESS PORT PREFIX

The bucket "bucket" has the files below FOLDER/bucket/PREFIX, in this process's memory. Anyone may read them, and
signatures are not checked. Prints "ready" when it listens. SIGTERM ends it; it then prints its CPU time, as JSON.
"""

import json
import logging
import os
import pathlib
import signal
import sys
import time

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import get_canned_acl, s3_backends
from moto.server import ThreadedMotoServer


def fill(folder, prefix):
    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    backend.create_bucket("bucket", "us-east-1")
    for path in sorted((folder / prefix).rglob("*")):
        if path.is_file():
            key = backend.put_object("bucket", path.relative_to(folder).as_posix(), path.read_bytes())
            key.set_acl(get_canned_acl("public-read"))  # requests by plain HTTP are not signed


def main():
    folder, address, port, prefix = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # for sigwait; the server's threads inherit it
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line for each request
    fill(pathlib.Path(folder, "bucket"), prefix)
    ThreadedMotoServer(ip_address=address, port=int(port), verbose=False).start()
    cpu_before = time.process_time()
    print("ready", flush=True)
    signal.sigwait([signal.SIGTERM])
    print(json.dumps({"cpu_s": time.process_time() - cpu_before}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
