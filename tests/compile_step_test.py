#!/usr/bin/env python3
"""Cases that tools/compile_step.py distinguishes without torch."""

import pathlib
import sys
import types
import unittest

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


if __name__ == "__main__":
    unittest.main()
