#!/usr/bin/env python3
"""Runs a command against an S3 server of moto's that checks signatures, for `make s3-test`.

    tests/s3_server.py COMMAND...

Exits with the command's status, or with 77 if moto is not installed.
"""

import http.server
import logging
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import urllib.parse


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


def main():
    # Requests that are not checked: those that make the user and the bucket. Read when moto is imported.
    os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "7"
    try:
        import boto3
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.server import ThreadedMotoServer
        from moto.sts.models import sts_backends
    except ImportError as error:
        print(f"skipped: moto is not installed ({error})", file=sys.stderr)
        return 77
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
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "object")
        file.write_bytes(random.Random(1).randbytes(100_000))
        s3.put_object(Bucket="bucket", Key="data/a b+\u00e4.shard", Body=file.read_bytes())
        s3 = boto3.client("s3", **dict(plain, aws_access_key_id=key["AccessKeyId"],
                                       aws_secret_access_key=key["SecretAccessKey"]))
        for i in range(1005):  # more than a page of a list
            s3.put_object(Bucket="bucket", Key=f"pages/{i % 2}/{i}", Body=b"x")
        environment = dict(os.environ, AWS_ENDPOINT_URL=endpoint, AWS_REGION="us-east-1",
                           AWS_ACCESS_KEY_ID=key["AccessKeyId"], AWS_SECRET_ACCESS_KEY=key["SecretAccessKey"],
                           SATURATE_S3_SERVER=endpoint, SATURATE_S3_ROLE=role["Arn"],
                           AWS_ENDPOINT_URL_STS=sts_of(sts_backends[DEFAULT_ACCOUNT_ID]["aws"]),
                           SATURATE_S3_FILE=str(file))
        status = subprocess.run(sys.argv[1:], env=environment).returncode
    server.stop()
    return status


if __name__ == "__main__":
    sys.exit(main())
