#!/usr/bin/env python3
"""Runs a command against an S3 server that checks signatures, for `make s3-test`: moto's, or rclone's.

    tests/s3_server.py moto|rclone COMMAND...

Exits with the command's status, or with 77 if the server is not installed.
"""

import contextlib
import http.server
import logging
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse

KEY = "data/a b+\u00e4.shard"
PAGES = [f"pages/{i % 2}/{i}" for i in range(1005)]  # more than a page of a list


def sts_of(backend):
    """An STS on a port of its own: moto's asks web identities for a signature, as soon as it checks any."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            assert form["Action"] == ["AssumeRoleWithWebIdentity"] and form["WebIdentityToken"] == ["token"], form
            role = backend.assume_role(region_name="us-east-1", role_session_name=form["RoleSessionName"][0],
                                       role_arn=form["RoleArn"][0], policy=None, duration=3600, external_id=None)
            body = f"""<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
                <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{role.access_key_id}</AccessKeyId>
                <SecretAccessKey>{role.secret_access_key}</SecretAccessKey>
                <SessionToken>{role.session_token}</SessionToken><Expiration>{role.expiration:%Y-%m-%dT%H:%M:%SZ}</Expiration>
                </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>""".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def make_object(folder):
    """The file whose bytes are those of the object KEY."""
    file = pathlib.Path(folder, "object")
    file.write_bytes(random.Random(1).randbytes(100_000))
    return file


@contextlib.contextmanager
def moto(folder):
    """Environment variables for a moto that has a user, a role and a bucket."""
    # Requests that are not checked: those that make the user and the bucket. Read when moto is imported.
    os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "7"
    import boto3
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.server import ThreadedMotoServer
    from moto.sts.models import sts_backends

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    plain = dict(endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    iam, s3 = boto3.client("iam", **plain), boto3.client("s3", **plain)
    iam.create_user(UserName="reader")
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument="""{"Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}""")
    role = iam.create_role(RoleName="role", AssumeRolePolicyDocument="""{"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Action": "sts:AssumeRoleWithWebIdentity", "Principal": {"Federated": "x"}}]}""")["Role"]
    iam.put_role_policy(RoleName="role", PolicyName="read", PolicyDocument="""{"Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}""")
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    s3.create_bucket(Bucket="bucket")
    file = make_object(folder)
    s3.put_object(Bucket="bucket", Key=KEY, Body=file.read_bytes())
    s3 = boto3.client("s3", **dict(plain, aws_access_key_id=key["AccessKeyId"],
                                   aws_secret_access_key=key["SecretAccessKey"]))
    for path in PAGES:
        s3.put_object(Bucket="bucket", Key=path, Body=b"x")
    try:
        yield dict(AWS_ENDPOINT_URL=endpoint, AWS_ACCESS_KEY_ID=key["AccessKeyId"],
                   AWS_SECRET_ACCESS_KEY=key["SecretAccessKey"], SATURATE_S3_ROLE=role["Arn"],
                   AWS_ENDPOINT_URL_STS=sts_of(sts_backends[DEFAULT_ACCOUNT_ID]["aws"]), SATURATE_S3_FILE=str(file))
    finally:
        server.stop()


@contextlib.contextmanager
def rclone(folder):
    """Environment variables for `rclone serve s3`, which has no roles."""
    program = shutil.which("rclone", path=os.path.dirname(sys.executable)) or shutil.which("rclone")
    if program is None:
        raise ImportError("there is no rclone")
    file, bucket = make_object(folder), pathlib.Path(folder, "remote", "bucket")
    for path in PAGES:
        place = bucket / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"x")
    (bucket / KEY).parent.mkdir()
    shutil.copy(file, bucket / KEY)
    server = subprocess.Popen([program, "serve", "s3", "--config", "", "--addr", "127.0.0.1:0", "--auth-key",
                               "key,secret", str(bucket.parent)], stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:  # one of which says on which port it listens
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        else:
            sys.exit(f"s3_server: error: rclone does not start, exit code {server.wait()}")
        threading.Thread(target=server.stderr.read, daemon=True).start()
        yield dict(AWS_ENDPOINT_URL=found[0], AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret",
                   SATURATE_S3_FILE=str(file))
    finally:
        server.terminate()
        server.wait()


def main():
    kind, *command = sys.argv[1:]
    try:
        with tempfile.TemporaryDirectory() as folder, {"moto": moto, "rclone": rclone}[kind](folder) as variables:
            environment = dict(os.environ, AWS_REGION="us-east-1", SATURATE_S3_SERVER=kind, **variables)
            return subprocess.run(command, env=environment).returncode
    except ImportError as error:
        print(f"skipped: {kind} is not installed ({error})", file=sys.stderr)
        return 77


if __name__ == "__main__":
    sys.exit(main())
