#!/usr/bin/env python3
"""Cases that tools/compile_step.py distinguishes without torch."""

import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import compile_step  # noqa: E402

SEEDED = "nondeterministic_seeded"


def operator(*names, tags=(SEEDED,)):
    arguments = [types.SimpleNamespace(name=name, default_value=0.0 if name == "dropout_p" else None) for name in names]
    return types.SimpleNamespace(tags=tags, _schema=types.SimpleNamespace(arguments=arguments))


def draws(target, *args, **kwargs):
    return compile_step.draws_random(types.SimpleNamespace(target=target, args=args, kwargs=kwargs), SEEDED)


class DrawsRandom(unittest.TestCase):
    def test_attention_draws_only_with_dropout(self):
        attention = operator("query", "key", "value", "dropout_p", "is_causal")
        self.assertFalse(draws(attention, "q", "k", "v"))
        self.assertFalse(draws(attention, "q", "k", "v", 0.0, False))
        self.assertFalse(draws(attention, "q", "k", "v", dropout_p=0.0))
        self.assertTrue(draws(attention, "q", "k", "v", 0.1))
        self.assertTrue(draws(attention, "q", "k", "v", dropout_p=0.1))

    def test_other_operators_draw_if_they_are_tagged(self):
        self.assertTrue(draws(operator("input", "p", "train"), "x", 0.0, True))
        self.assertFalse(draws(operator("input", tags=()), "x"))
        self.assertFalse(draws("output"))


class Torch(unittest.TestCase):
    """The versions of torch that a saturate built with 2.15.0 accepts."""

    def imported(self, version):
        with tempfile.TemporaryDirectory() as folder:
            command = pathlib.Path(folder) / "saturate"
            command.write_text("#!/bin/sh\necho 'libtorch      2.15.0'\n")
            command.chmod(0o755)
            with unittest.mock.patch.dict(sys.modules, torch=types.SimpleNamespace(__version__=version)):
                return compile_step.import_torch(types.SimpleNamespace(saturate=str(command)))

    def test_another_minor_release_is_refused(self):
        for version in ("2.15.0", "2.15.1+cpu"):
            self.assertEqual(self.imported(version).__version__, version)
        for version in ("2.11.0", "2.1.5", "2.150.0"):
            with self.assertRaisesRegex(SystemExit, f"has torch {version}, but .* 2.15.0. Give a Python .* torch 2.15 "):
                self.imported(version)


if __name__ == "__main__":
    unittest.main()
