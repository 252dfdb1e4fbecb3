"""Names of arguments, paths, with, pickling, help and types. Needs numpy and pytest."""

import ast
import copy
import inspect
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

import saturate

SYNTH = "synth:size=24,count=60"


def make(**arguments):
    return saturate.Loader(SYNTH, **{"batch": 16, "size": 20, **arguments})


def labels_of(batches):
    return [batch[1].tolist() for batch in batches]


def test_names_of_dataloader():
    assert labels_of(make(batch=None, batch_size=16, num_workers=0)) == labels_of(make())
    assert labels_of(make(shuffle=False)) == labels_of(make(train=False)) == labels_of(make(shuffle="none"))
    assert labels_of(make(shuffle=True)) == labels_of(make())


def test_every_argument_is_named_and_typed():
    parameters = inspect.signature(saturate.Loader.__init__).parameters
    assert all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters.values())
    assert all(p.annotation is not p.empty for name, p in parameters.items() if name != "self")
    text = inspect.getdoc(saturate.Loader)
    assert all(name in text for name in parameters if name != "self")
    assert (pathlib.Path(saturate.__file__).parent / "py.typed").exists()
    assert all(member.__doc__ for name, member in vars(saturate.Loader).items()
               if not name.startswith("_") and name not in ("rank", "world"))


def stubbed(nodes):
    """Definitions by name."""
    found = {node.name: node for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return {**found, **{node.target.id: node for node in nodes if isinstance(node, ast.AnnAssign)}}


def parameters(function):
    """Names, and how many are positional only, whose names mean nothing."""
    nameless = len(function.args.posonlyargs)
    return [each.arg for each in function.args.args], nameless


def test_stubs_have_what_the_module_has():
    module = saturate._core
    stub = stubbed(ast.parse((pathlib.Path(saturate.__file__).parent / "_core.pyi").read_text()).body)
    assert set(stub) == {name for name in dir(module) if not name.startswith("__")} | {"__version__"}
    loader = stubbed(stub["Loader"].body)
    assert set(loader) == {name for name in dir(module.Loader) if not name.startswith("__")} | {"__init__"}
    for owner, nodes in ((module, stub), (module.Loader, loader)):
        for name, node in nodes.items():
            member = getattr(owner, name)
            is_property = isinstance(member, property)
            assert is_property == any(each.id == "property" for each in getattr(node, "decorator_list", []))
            if isinstance(node, ast.FunctionDef) and not is_property:
                real, = ast.parse(f"def {member.__doc__}: ...").body
                assert parameters(node) == parameters(real), name


def test_paths_are_sources(tmp_path):
    image = next((pathlib.Path(__file__).resolve().parents[2] / "tests/goldens/image/inputs").rglob("*.png"))
    (tmp_path / "synth:odd/a").mkdir(parents=True)
    (tmp_path / "synth:odd/a/1.png").write_bytes(image.read_bytes())
    for path in (tmp_path / "synth:odd", (tmp_path / "synth:odd").relative_to(tmp_path)):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            assert len(list(saturate.Loader(path, size=8))) == 1


def test_with_closes():
    with make() as loader:
        images, labels = next(iter(loader))
        kept = images.copy()
    assert np.array_equal(images, kept)
    with pytest.raises(saturate.Error, match="closed"):
        iter(loader)
    loader.close()
    assert len(loader) == 4 and loader.skipped == []
    other = make()
    iterator = iter(other)
    other.close()
    with pytest.raises(saturate.Error, match="close"):
        next(iterator)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_copies_have_the_position(duplicate):
    loader = make(seed=3)
    whole = labels_of(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator)
    other = duplicate(loader)
    assert labels_of(other) == whole[1:] == labels_of(iterator)
    assert labels_of(other) == labels_of(loader)


def test_batch_transform_gets_whole_batches_and_loses_none():
    fails = [True]

    def transform(batch):
        if fails[0]:
            raise RuntimeError("not now")
        images, labels, names = batch
        return {"images": images * 2, "labels": labels, "names": names}

    loader = make(batch_transform=transform, names=True)
    iterator = iter(loader)
    with pytest.raises(RuntimeError):
        next(iterator)
    fails[0] = False
    for found, (images, labels) in zip(iterator, make()):
        assert np.array_equal(found["images"], images * 2) and np.array_equal(found["labels"], labels)
        assert len(found["names"]) == len(labels)


def test_jax_and_tensorflow_take_the_arrays():
    expected = list(make())
    tested = 0
    for to in ("jax", "tensorflow"):
        try:
            __import__(to)
        except ImportError:
            continue
        tested += 1
        for (images, labels), (a, b) in zip(make(to=to), expected):
            assert type(images).__module__.startswith(("jax", "tensorflow"))
            assert np.array_equal(np.asarray(images), a) and np.array_equal(np.asarray(labels), b)
    if tested == 0:
        pytest.skip("neither jax nor tensorflow is installed")


def test_a_framework_that_is_not_installed_is_one_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ModuleNotFoundError, match='to="jax" needs jax, which is not installed'):
        make(to="jax")


def test_types_are_right(tmp_path):
    pytest.importorskip("mypy")
    folder = pathlib.Path(__file__).resolve().parents[1]
    result = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)], cwd=folder, text=True,
                            capture_output=True)
    assert result.returncode == 0, result.stdout


def test_a_copy_for_a_diagnosis_begins_at_the_first_epoch():
    loader = make(seed=3, batch_transform=lambda batch: batch)
    first = labels_of(loader)
    other = saturate.Loader._for_diagnosis(**loader._arguments)
    assert other._saturate and not loader._saturate
    assert labels_of(other) == first != labels_of(loader)


@pytest.mark.parametrize("key, value", [("augment.device", "cpu"), ("augment.output", "bf16"), ("optimizer.lr", 0.1),
                                        ("data.decode_device", "cpu"), ("train.batch", "auto"),
                                        ("data.source", "synth:")])
def test_keys_that_a_loader_does_not_use_are_refused(key, value):
    with pytest.raises(saturate.Error, match=key):
        make(options={key: value})


def test_tensorflow_takes_no_bytes_by_strides():
    with pytest.raises(ValueError, match='layout="nhwc"'):
        make(to="tensorflow", dtype="uint8")


def test_a_loader_without_a_dataset_says_what_is_in_its_place():
    loader = make()
    assert not hasattr(loader, "dataset")
    with pytest.raises(AttributeError, match="load_state_dict.*skip_first_batches"):
        loader.dataset


def test_padding_needs_a_crop_that_pads():
    with pytest.raises(ValueError, match='crop="pad"'):
        make(padding=4)
    with make(size=24, crop="pad", padding=4) as loader:
        next(iter(loader))
