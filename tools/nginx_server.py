"""Starts nginx for tests and benchmarks, as one process that writes only below one folder."""

import os
import pathlib
import shutil
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACES = os.pathsep.join([os.environ["PATH"], "/usr/sbin", str(ROOT / "build/nginx/usr/sbin")])
CONFIG = """daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 512; }}
http {{
  log_format line '{line}';
  access_log {folder}/log line {buffer};
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{
    {server}
  }}
}}
"""


def program():
    """Its path; None if it is not installed."""
    return shutil.which("nginx", path=PLACES)


def version():
    said = subprocess.run([program(), "-v"], check=True, capture_output=True, text=True).stderr
    return said.strip().rpartition("nginx/")[2]


def command(folder, server, line, buffer=""):
    """The command that starts it. `server`: directives; `line`: the format of the lines in folder/log."""
    (folder / "errors").touch()
    (folder / "config").write_text(CONFIG.format(folder=folder, server=server, line=line, buffer=buffer),
                                   encoding="utf-8")
    return [program(), "-c", folder / "config", "-e", folder / "errors"]


def wait_until_ready(process, folder):
    for _ in range(200):
        if (folder / "pid").exists():  # written after it has begun to listen
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"nginx did not start: {(folder / 'errors').read_text()}")
