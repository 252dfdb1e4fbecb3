#!/usr/bin/env python3
"""Training from a store that fails: killed, away for longer than data.timeout_s, and with names that do not resolve.

    tests/store_train_test.py --saturate build/saturate [--kills 20] [--away 605] [NAME of a test ...]

A run must have the losses and weights of one on the same files on the disk that nothing interrupted, to the rounding
that other numbers of processes have. The images are large enough that only the rows of each crop are requested.
"""

import random
import re
import shutil
import time

import store_runs
from bad_store import Names, Store
from store_runs import SAMPLES, STEPS, StoreTest, losses, options


class FailingStore(StoreTest):
    def killed_run(self, scheme_and_key, kills, settings=()):
        """Returns the server's counts after a run of 2, 1, 3 ... processes that are killed."""
        with Store(self.files, failures=0.05, rate=60e6) as store:
            store.renew = 150
            source = scheme_and_key.replace("HOST", store.host)
            environment = store.environment(self.folder, "token0")
            draw, done = random.Random(1), 0
            for kill in range(kills):
                process = self.start(store, source, (2, 1, 3)[kill % 3], settings, environment)
                if draw.random() < 2 / 3:  # else it may be killed before its first step
                    self.wait_for_step(process, done + 1)
                time.sleep(draw.uniform(0, 1.5))
                if process.poll() is not None:
                    self.finish(process)
                self.end(process)
                done = max(losses(self.out), default=0)
            self.finish(self.start(store, source, (2, 1, 3)[kills % 3], settings, environment))
            return store

    def test_kills_and_other_numbers_of_processes(self):
        few_kills = options.kills // 4
        for source, kills, settings in (
                ("shard:s3://bucket/a.shard", options.kills - few_kills, ()),
                ("shard:http://HOST/files/a.shard", few_kills, [f"data.cache_dir={self.folder}/cache"])):
            with self.subTest(source):
                shutil.rmtree(self.out, ignore_errors=True)
                store = self.killed_run(source, kills, settings)
                self.expect_whole_run()
                few = sum(512 < length < 8192 for length in store.ranges)
                print(f"{source}: {dict(store.counts)}, {few} requests for tables of segments")
                if settings:
                    continue
                self.assertGreater(few, SAMPLES // 2, "the rows of crops are requested")
                self.assertGreater(store.counts["expired"], 0)

    def test_an_outage_is_one_error_and_the_resumed_run_is_exact(self):
        for world in (1, 2):
            with self.subTest(world=world), Store(self.files, rate=6e6) as store:
                shutil.rmtree(self.out, ignore_errors=True)
                source, settings = "shard:s3://bucket/a.shard", ["data.timeout_s=2", "checkpoint.every=1 steps"]
                process = self.start(store, source, world, settings)
                self.wait_for_step(process, 2)
                store.is_away = True
                self.finish(process, 4)
                said = self.log.read_text()
                # A launcher repeats the last lines of a rank, and says which failed first.
                errors = [line for line in said.splitlines() if re.match(r"(\[\d\] )?saturate: error: no ", line)]
                self.assertTrue(1 <= len(errors) <= world and len(set(errors)) == len(errors), said)
                self.assertEqual(said.count("\nsaturate: error: rank "), world - 1, said)
                for part in ("no answer in data.timeout_s = 2 s", "(s3://bucket/a.shard)", "with --resume"):
                    self.assertIn(part, errors[0])
                self.assertLess(max(losses(self.out)), STEPS)
                store.is_away, store.rate = False, 0
                self.finish(self.start(store, source, 3, settings))
                self.expect_whole_run()

    def test_a_store_that_comes_back_in_time_changes_nothing(self):
        with Store(self.files, rate=6e6) as store:
            process = self.start(store, "shard:s3://bucket/a.shard", 2, [f"data.timeout_s={options.away + 60}"])
            self.wait_for_step(process, 2)
            store.is_away = True
            time.sleep(options.away)
            store.is_away, store.rate = False, 0
            self.finish(process)
            self.expect_whole_run()


class FlappingNames(StoreTest):
    def setUp(self):
        super().setUp()
        self.names = Names(self.folder)
        if not self.names.can_be_used():
            self.skipTest("mount namespaces need root and util-linux")
        self.names.resolve(False)

    def begin(self, store, *settings):
        store.name = Names.HOST
        return self.start(store, f"shard:http://{store.host}/files/a.shard", 1, settings, before=self.names.inside)

    def test_a_name_that_resolves_later_costs_time_only(self):
        with Store(self.files) as store:
            process = self.begin(store)
            time.sleep(3)
            self.assertEqual(store.counts["requests"], 0)
            self.names.resolve(True)
            self.finish(process)
            self.expect_whole_run()

    def test_a_name_that_flaps_during_a_run_costs_time_only(self):
        self.names.resolve(True)
        with Store(self.files, rate=10e6) as store:
            process = self.begin(store)
            for step in (2, 5, 8):
                self.wait_for_step(process, step)
                self.names.resolve(False)
                store.is_away = True  # closes the connections, so that the name is needed again
                time.sleep(0.7)
                store.is_away = False
                time.sleep(0.3)
                self.names.resolve(True)
            self.finish(process)
            self.assertGreater(store.counts["closed"], 0)
            self.expect_whole_run()

    def test_a_name_that_never_resolves_is_an_error_that_says_so(self):
        with Store(self.files) as store:
            self.finish(self.begin(store, "data.timeout_s=2"), 4)
            said = self.log.read_text()
            self.assertEqual(said.count("error: "), 1, said)
            self.assertIn("Could not resolve host: store.test", said)


if __name__ == "__main__":
    store_runs.main(__doc__, kills=4, away=3)
