"""Sources of tensors, against files that numpy writes."""

import gzip
import pathlib

import numpy as np
import pytest

import saturate

TYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]


def array_of(dtype, shape):
    values = np.random.default_rng(3).integers(-100, 100, shape)
    return (values % 2 == 0) if dtype == "bool" else values.astype(dtype)


def rows(source, **arguments):
    loader = saturate.Loader(source, batch=3, train=False, **arguments)
    batches = list(loader)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_arrays_are_those_that_numpy_saved(tmp_path, dtype, order, byte_order):
    for shape in ((7,), (7, 1), (7, 2, 3)):
        array = array_of(dtype, shape)
        np.save(tmp_path / "x.npy", np.asarray(array.astype(array.dtype.newbyteorder(byte_order)), order=order))
        read = rows(f"npy:{tmp_path}")["x"]
        assert read.dtype == array.dtype and np.array_equal(read, array), shape


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives(tmp_path, save):
    arrays = {"x": array_of("float32", (10, 4)), "t": np.asfortranarray(array_of("int16", (10, 2, 5))),
              "y": np.arange(10) % 3}
    save(tmp_path / "a.npz", **arrays)
    read = rows(f"npz:{tmp_path}/a.npz")
    assert list(read) == ["x", "t", "y"]
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype and np.array_equal(read[name], array), name
    loader = saturate.Loader(f"npz:{tmp_path}/a.npz,fields=y+x", batch=4, names=True)
    assert loader.target == "y" and loader.classes == ["0", "1", "2"] and loader.samples == 10
    for fields, names in loader:
        index = [int(name.rsplit(":", 1)[1]) for name in names]
        assert np.array_equal(fields["x"], arrays["x"][index]) and list(fields) == ["y", "x"]


def test_arrays_of_an_older_numpy_can_be_written(tmp_path, monkeypatch):
    """Its from_dlpack() would make them read-only."""
    monkeypatch.setattr(np, "__version__", "1.26.4")
    arrays = {f"x_{dtype}": array_of(dtype, (7, 2)) for dtype in TYPES}
    np.savez(tmp_path / "a.npz", **arrays)
    batch, = saturate.Loader(f"npz:{tmp_path}/a.npz", batch=7, train=False)
    assert list(batch) == list(arrays)
    for name, array in arrays.items():
        assert batch[name].dtype == array.dtype and np.array_equal(batch[name], array), name
        assert batch[name].flags.writeable, name


@pytest.mark.parametrize("array, reason", [
    (np.array([{"a": 1}, None]), "pickle"),
    (np.zeros(2, [("a", "f4"), ("b", "i4")]), "records"),
    (np.zeros(2, "complex64"), "not a number"),
    (np.array(["a", "bc"]), "not a number"),
    (np.zeros(2, "datetime64[s]"), "not a number"),
    (np.zeros(()), "single value"),
    (np.zeros((0, 3)), "no values"),
])
def test_other_arrays_are_refused(tmp_path, array, reason):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(saturate.Error, match=reason):
        saturate.Loader(f"npy:{tmp_path}/x.npy", batch=2)


def test_a_shard_has_the_arrays_that_numpy_saved(tmp_path):
    formats = pathlib.Path(__file__).resolve().parents[2] / "tests/goldens/formats"
    (tmp_path / "a.shard").write_bytes(gzip.decompress((formats / "tensors.shard.gz").read_bytes()))
    with np.load(formats / "tensors.npz") as arrays:
        read = rows(f"shard:{tmp_path}/a.shard")
        assert list(read) == list(arrays)
        for name, array in arrays.items():
            assert read[name].dtype == array.dtype and np.array_equal(read[name], array), name
    loader = saturate.Loader(f"shard:{tmp_path}/a.shard", batch=4)
    assert loader.target == "y" and loader.classes == ["0", "1", "2"] and loader.samples == 6


def test_samples_of_varying_length_are_padded_and_grouped(tmp_path):
    random = np.random.default_rng(4)
    lengths = random.integers(1, 100, 1000)
    x = np.where(np.arange(100) < lengths[:, None], np.arange(1000)[:, None] + 1, -1).astype(np.int32)
    np.savez(tmp_path / "a.npz", x=x, n=lengths, y=np.arange(1000))
    source = f"npz:{tmp_path}/a.npz,lengths=n"

    def epoch(epochs=1, **arguments):
        loader = saturate.Loader(source, batch=16, seed=2, **arguments)
        for _ in range(epochs):
            batches = list(loader)
        return batches

    batches = epoch()
    for batch in batches:
        longest = -(-batch["n"].max() // 8) * 8
        assert batch["mask"].dtype == bool and np.array_equal(batch["mask"], np.arange(longest) < batch["n"][:, None])
        assert np.array_equal(batch["x"], np.where(batch["mask"], batch["y"][:, None] + 1, 0))
    order = np.concatenate([batch["y"] for batch in batches])
    assert sorted(order) == list(range(1000))
    assert not np.array_equal(order, np.concatenate([batch["y"] for batch in epoch(epochs=2)]))
    used, padded = lengths.sum(), sum(batch["mask"].size for batch in batches)
    assert padded < 1.2 * used < sum(lengths[i:i + 16].max() * 16 for i in range(0, 1000, 16))
    ranks = [epoch(rank=rank, world=2, threads=2) for rank in range(2)]
    for whole, first, second in zip(batches, *ranks):
        assert whole["x"].shape[1] == first["x"].shape[1] == second["x"].shape[1]
        assert sorted(whole["y"]) == sorted([*first["y"], *second["y"]])


def test_tables_are_normalised_as_numpy_does(tmp_path):
    random = np.random.default_rng(1)
    values, towns = random.normal(5, 3, (50, 2)), random.choice(["a", "b", "c"], 50)
    lines = [f"{a!r},{town},{b!r},{a - b!r}" for (a, b), town in zip(values.tolist(), towns)]
    (tmp_path / "t.csv").write_text("\n".join(["a,town,b,y", *lines]))
    held = np.arange(50) % 5 == 2
    scaled = (values - values[~held].mean(0)) / values[~held].std(0)
    expected = np.column_stack([scaled[:, 0], *(towns == town for town in "abc"), scaled[:, 1]])
    for part, chosen in (("train", ~held), ("held", held)):
        read = rows(f"split:{part},1/5,csv:{tmp_path}/t.csv")
        assert np.allclose(read["x"], expected[chosen], atol=1e-5)
        assert np.allclose(read["y"], (values[:, 0] - values[:, 1])[chosen], atol=1e-5)


def test_tokens_as_nanogpt_writes_them(tmp_path):
    tokens = np.arange(100, dtype=np.uint16) * 601
    tokens.tofile(tmp_path / "train.bin")
    read = rows(f"tokens:{tmp_path}/train.bin,context=9")
    assert read["x"].shape == (11, 9) and read["x"].dtype == np.int64
    assert np.array_equal(read["x"].ravel(), tokens[:99]) and np.array_equal(read["y"].ravel(), tokens[1:])


def test_an_epoch_is_resumed_and_shared_by_ranks(tmp_path):
    np.save(tmp_path / "n.npy", np.arange(40))
    source = f"npy:{tmp_path}"
    whole = saturate.Loader(source, batch=8, threads=2, seed=5)
    first = [batch["n"].tolist() for batch in whole]
    assert sorted(sum(first, [])) == list(range(40))
    part = iter(whole)
    second = [next(part)["n"].tolist()]
    state = whole.state_dict()
    second += [batch["n"].tolist() for batch in part]
    later = saturate.Loader(source, batch=8, seed=5)
    later.load_state_dict(state)
    assert [batch["n"].tolist() for batch in later] == second[1:] and second != first
    ranks = [[batch["n"].tolist() for batch in saturate.Loader(source, batch=8, seed=5, rank=rank, world=2)]
             for rank in range(2)]
    assert [sorted(a + b) for a, b in zip(*ranks)] == [sorted(batch) for batch in first]


@pytest.mark.parametrize("arguments", [{"size": 8}, {"crop": "center"}, {"mean": [0, 0, 0]}, {"mixup": 0.2},
                                       {"soft_labels": True}, {"decode": "fast"}])
def test_arguments_about_images_are_refused(tmp_path, arguments):
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    with pytest.raises(saturate.Error, match="tensors"):
        saturate.Loader(f"npy:{tmp_path}", batch=2, **arguments)


def test_torch_gets_the_loaders_memory(tmp_path):
    torch = pytest.importorskip("torch")
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2), np.float32), y=np.arange(4))
    batch, = saturate.Loader(f"npz:{tmp_path}/a.npz", batch=4, to="torch", train=False)
    assert batch["x"].dtype == torch.float32 and batch["y"].tolist() == [0, 1, 2, 3]


def test_volumes_and_their_labels_are_cropped_and_flipped_alike(tmp_path):
    x = np.arange(4 * 6 * 7 * 8, dtype=np.float32).reshape(4, 6, 7, 8)
    np.savez(tmp_path / "a.npz", x=x, y=x.astype(np.int32))
    source = f"npz:{tmp_path}/a.npz,volume=x"
    loader = saturate.Loader(source, batch=4, crop="random", size=4, flip=0.5, seed=2)
    batches = [next(iter(loader)) for _ in range(3)]
    for batch in batches:
        assert batch["x"].shape == (4, 4, 4, 4) and batch["x"].dtype == np.float32
        assert np.array_equal(batch["x"], batch["y"])
        assert (np.abs(np.diff(batch["x"], axis=3)) == 1).all() and (np.abs(np.diff(batch["x"], axis=2)) == 8).all()
    assert not np.array_equal(batches[0]["x"], batches[1]["x"])
    held, = saturate.Loader(source, batch=4, crop="random", size=4, train=False)
    assert np.array_equal(held["x"], x[:, 1:5, 1:5, 2:6])
    warped, = saturate.Loader(source, batch=4, options={"augment.rotate": 20, "augment.contrast": "gamma:0.3"})
    assert warped["x"].shape == x.shape and (warped["y"] == -100).any()
    with pytest.raises(saturate.Error, match="does not apply to volumes"):
        saturate.Loader(source, batch=4, options={"augment.hue": 0.1})
    with pytest.raises(saturate.Error, match="mean is for images"):
        saturate.Loader(source, batch=4, mean=[0, 0, 0])
