#!/usr/bin/env python3
"""Keys, tokens and signatures of URLs in what saturate prints and writes: there must be none.

    tests/run_secrets_test.py --saturate build/saturate [NAME of a test ...]

A URL's query is in the run's recipe.toml and its checkpoints, since a resumed run reads the source again
(docs/data.md); it must not be anywhere else. Keys must be nowhere.
"""

import subprocess
import urllib.parse

import store_runs
from bad_store import SECRET, Store
from store_runs import StoreTest, options

TOKEN = "TOKENOFTHETESTNEVERTOBEPRINTED"
SIGNATURE = "51696e61747572655f6f665f7468655f74657374"
QUERY = f"X-Amz-Credential=AKIDOFURL%2Fx&X-Amz-Security-Token={TOKEN}&X-Amz-Signature={SIGNATURE}"
EVERYTHING = ["watch.tensorboard=true", "watch.csv=true", "watch.trace=steps:2-4"]
MORE = [*EVERYTHING, "train.epochs=4", "data.timeout_s=2"]


class Secrets(StoreTest):
    def expect_no(self, secrets, text, where):
        for secret in secrets:
            for form in {secret, urllib.parse.quote(secret, safe="")}:
                self.assertNotIn(form.encode(), text, f"{where} has a secret")

    def look(self, secrets, allowed=()):
        """At the log and at every file of the run."""
        self.expect_no(secrets, self.log.read_bytes(), "the log")
        files = [path for path in self.out.rglob("*") if path.is_file()] if self.out.exists() else []
        for path in files:
            if not any(path.match(pattern) for pattern in allowed):
                self.expect_no(secrets, path.read_bytes(), path)
        return {str(path.relative_to(self.out)).split("/")[0] for path in files}

    def report(self, secrets):
        page = self.folder / "report.html"
        done = subprocess.run([options.saturate, "report", self.out, "--out", page], check=True, capture_output=True)
        self.expect_no(secrets, done.stdout + done.stderr + page.read_bytes(), "the report")

    def test_keys_are_printed_and_written_nowhere(self):
        secrets = SECRET, TOKEN
        with Store(self.files, failures=0.1) as store:
            environment = store.environment(self.folder, TOKEN)
            source = "shard:s3://bucket/a.shard"
            self.finish(self.start(store, source, 1, EVERYTHING, environment))
            found = self.look(secrets)
            self.assertTrue({"recipe.toml", "metrics.jsonl", "metrics.csv", "tb", "trace.json", "checkpoints",
                             "host.json"} <= found, found)
            self.report(secrets)
            self.fail_in_all_ways(store, source, secrets, environment=environment)
            store.token = "another"  # the file has the old one
            self.finish(self.start(store, source, 1, MORE, environment), 4)
            self.assertIn("Renew", self.log.read_text())
            self.look(secrets)

    def test_a_signature_of_a_url_is_only_where_the_run_reads_it_again(self):
        secrets, allowed = (SIGNATURE, TOKEN), ("recipe.toml", "checkpoints/*")
        with Store(self.files, failures=0.1) as store:
            source = f"shard:http://{store.host}/files/a.shard?{QUERY}"
            self.finish(self.start(store, source, 1, EVERYTHING))
            self.look(secrets, allowed)
            self.assertIn(SIGNATURE, (self.out / "recipe.toml").read_text())
            self.report(secrets)
            self.fail_in_all_ways(store, source, secrets, allowed)

    def fail_in_all_ways(self, store, source, secrets, allowed=(), environment=None):
        for store.way in ("denied", "closed", "echo as code", "echo as range"):
            process = self.start(store, source, 2, MORE, environment)
            self.assertIn(process.wait(120), (3, 4), self.log.read_text())
            self.assertIn("error: ", self.log.read_text())
            self.look(secrets, allowed)
        store.way = None

    def test_commands_print_no_signature(self):
        with Store(self.files) as store:
            source = f"shard:http://{store.host}/files/a.shard?{QUERY}"
            for words in (["data", "inspect", source], ["data", "verify", source], ["bench", "storage", source],
                          ["data", "pack", source, "--out", f"shard:{self.folder}/copy"]):
                done = subprocess.run([options.saturate, *words], capture_output=True,
                                      env=store.environment(self.folder))
                self.assertTrue(done.returncode == 0 or b"this is a debug build" in done.stderr, done.stderr)
                self.expect_no((SIGNATURE, TOKEN), done.stdout + done.stderr, words[:2])


if __name__ == "__main__":
    store_runs.main(__doc__)
