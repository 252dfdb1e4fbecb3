"""Writes tests/goldens/model/gpt_tiny.json: logits and gradients of Hugging Face's GPT2LMHeadModel, initial
weights of the model in tools/model_twins.py.

Run: python tests/oracles/language_goldens.py   (torch 2.11, transformers 5.24)
"""

import json
import pathlib
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from formula import fill, symmetric, uniform

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "tools"))
from model_twins import make_twin  # noqa: E402

VOCABULARY, CONTEXT, SEQUENCES = 65, 16, 2
PREFIX = "transformer."


def short(values):
    """Floats with nine digits, which identify each float32."""
    if isinstance(values, list):
        return [short(value) for value in values]
    return float(f"{values:.9g}")


def tokens(name):
    return torch.from_numpy((uniform(name, SEQUENCES * CONTEXT) * VOCABULARY).astype(int)).view(SEQUENCES, CONTEXT)


def hugging_face():
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=2, bos_token_id=0,
                        eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = GPT2LMHeadModel(config).eval()
    assert model.lm_head.weight is model.transformer.wte.weight
    for name, parameter in model.named_parameters():
        fill(name.removeprefix(PREFIX), parameter)
    return model


def step(model, forward, of):
    """In double: the loss and, per parameter, the gradient's norm and its product with a probe."""
    logits = forward(tokens("tokens"))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens("next").flatten())
    loss.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        name = of(name)
        probe = symmetric("probe:" + name, parameter.shape, 1).double()
        gradients[name] = [parameter.grad.norm().item(), (parameter.grad * probe).sum().item()]
    return {"loss": loss.item(), "gradients": gradients}


def main():
    torch.manual_seed(0)
    twin = make_twin("gpt_tiny", VOCABULARY, CONTEXT, 1)
    initial = {}
    for name, parameter in twin.named_parameters():
        flat = parameter.detach().flatten()
        initial[name] = short([flat[0].item(), flat[:64].double().sum().item()])
    state = [[name, list(parameter.shape)] for name, parameter in twin.named_parameters()]
    for name, parameter in twin.named_parameters():
        fill(name, parameter)
    model = hugging_face()
    with torch.no_grad():
        logits, found = model(tokens("tokens")).logits, twin(tokens("tokens"))
    worst, scale = (logits - found).abs().max().item(), logits.abs().max().item()
    print(f"own model and Hugging Face: largest difference of logits {worst:.2e}, largest logit {scale:.2f}")
    assert worst < 1e-5 * scale
    training = step(model.double(), lambda x: model(x).logits, lambda name: name.removeprefix(PREFIX))
    of_twin = step(twin.double(), twin, str)
    for name, (norm, product) in training["gradients"].items():
        assert abs(of_twin["gradients"][name][0] - norm) < 1e-9 * norm, name
        assert abs(of_twin["gradients"][name][1] - product) < 1e-9 * norm, name
    training["gradients"] = {name: short(row) for name, row in training["gradients"].items()}
    golden = {"parameters": state, "initial": initial, "logits": short(logits.tolist()), "training": training}
    (ROOT / "tests/goldens/model/gpt_tiny.json").write_text(json.dumps(golden) + "\n")


main()
