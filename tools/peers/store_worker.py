"""One measurement of store_peers.py: one loader, from the start of its first epoch, without a cache.

    tools/peers/store_worker.py JSON      JSON: the fields of Spec

Writes {"images", "seconds", "first_s", "first_images", "cpu_s", "whole", "type"} as JSON into the file `result`.
`first_s` counts from before the loader is made, after all imports, to its first batch; `cpu_s` is the time of this
process's threads on the CPU from then on; `whole` says whether the epoch ended before the time did.
"""

import dataclasses
import glob
import json
import os
import pathlib
import sys
import time

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE, BATCH, BUFFER = 224, 64, 256


@dataclasses.dataclass
class Spec:
    peer: str
    bucket: str     # the folder that the server serves, for measurements without it
    endpoint: str   # "": files are read from the folder
    set: str        # the folder below the bucket with shards
    shards: int
    threads: int
    cache: str      # an empty folder
    result: str
    seconds: float  # from the first batch
    first_only: bool

    def urls(self, form):
        return [f"{self.endpoint}/bucket/{self.set}/{form}/{number:06}.{form}" for number in range(self.shards)]

    def objects(self, name):
        return f"s3://bucket/{name}" if self.endpoint else f"{self.bucket}/{name}"


def augmentation():
    """A function from the bytes of a JPEG to float32 [3, 224, 224], by torchvision's decoder and transforms."""
    import torch
    import torchvision.io as io
    import torchvision.transforms.v2 as v2

    transform = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(),
                            v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

    def augmented(data):
        pixels = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return transform(io.decode_jpeg(pixels, mode=io.ImageReadMode.RGB))
    return augmented


def one_thread(*_):
    import torch
    torch.set_num_threads(1)


def torch_loader(dataset, threads, **more):
    import torch
    return torch.utils.data.DataLoader(dataset, BATCH, num_workers=threads, worker_init_fn=one_thread, **more)


def saturate_loader(spec, source, **more):
    import saturate
    import torch  # noqa: F401  its import does not count

    return lambda: saturate.Loader(source, batch=BATCH, size=SIZE, crop="random_resized", flip=0.5, mean=MEAN, std=STD,
                                   threads=spec.threads, decode="fast", to="torch", **more)


def shards_of(spec, form):
    return spec.objects(f"{spec.set}/{form}/{{000000..{spec.shards - 1:06}}}.{form}")


def saturate_shard(spec):
    return saturate_loader(spec, f"shard:{shards_of(spec, 'shard')}")


def saturate_block(spec):
    """Not in full random order: from which delay on does that pay?"""
    return saturate_loader(spec, f"shard:{shards_of(spec, 'shard')}", shuffle="block")


def saturate_tar(spec):
    return saturate_loader(spec, f"tar:{shards_of(spec, 'tar')}")


def saturate_folder(spec):
    return saturate_loader(spec, f"folder:{spec.objects('folder')}")


def imported_litdata():
    """LitData reads S3 through obstore, which refuses plain HTTP unless it is told."""
    import litdata
    import litdata.streaming.downloader as downloader

    getattr(downloader, "_OBSTORE_CLIENT_OPTIONS", {})["allow_http"] = True
    return litdata


def litdata(spec):
    """StreamingDataset, whose chunks are kept in a folder."""
    lit = imported_litdata()
    augmented = augmentation()

    class Photographs(lit.StreamingDataset):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return augmented(sample["jpg"]), sample["label"]

    def make():
        dataset = Photographs(f"s3://bucket/{spec.set}/litdata", cache_dir=spec.cache, shuffle=True)
        return lit.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=spec.threads, worker_init_fn=one_thread)
    return make


def litdata_folder(spec):
    """StreamingRawDataset, one object for each photograph; no labels."""
    lit = imported_litdata()
    augmented = augmentation()

    def make():
        dataset = lit.StreamingRawDataset("s3://bucket/folder", cache_dir=spec.cache, transform=augmented)
        return torch_loader(dataset, spec.threads, shuffle=True)
    return make


def mosaic(spec):
    """MosaicML Streaming, whose shards are kept in a folder."""
    import streaming

    augmented = augmentation()

    class Photographs(streaming.StreamingDataset):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return augmented(sample["jpg"]), sample["label"]

    def make():
        dataset = Photographs(remote=f"s3://bucket/{spec.set}/mds", local=f"{spec.cache}/mds", shuffle=True,
                              batch_size=BATCH)
        for stream in dataset.streams:  # forked workers would share the connection that has read the index
            stream._downloader.clean_up()
        return torch_loader(dataset, spec.threads)
    return make


def webdataset(spec):
    """Plain HTTP, through the curl that it starts."""
    import webdataset as wds

    augmented = augmentation()

    def make():
        dataset = wds.WebDataset(spec.urls("tar"), shardshuffle=spec.shards, nodesplitter=wds.split_by_node)
        dataset = dataset.shuffle(BUFFER).to_tuple("jpg", "cls").map_tuple(augmented, int)
        return torch_loader(dataset, spec.threads)
    return make


def huggingface(spec, builder, files, field):
    import datasets
    from datasets.utils.file_utils import xopen

    augmented = augmentation()

    def sample(row):
        data = row[field]["bytes"]
        if data is None:  # an object for each photograph; this is how Image reads it
            with xopen(row[field]["path"], "rb") as file:
                data = file.read()
        return {"image": augmented(data)}

    def make():
        rows = datasets.load_dataset(builder, data_files={"train": files}, split="train", streaming=True)
        rows = rows.cast_column(field, datasets.Image(decode=False)).select_columns([field])
        rows = rows.shuffle(seed=1, buffer_size=BUFFER).map(sample, remove_columns=[field])
        return torch_loader(rows, spec.threads)
    return make


def huggingface_tar(spec):
    """Plain HTTP, through fsspec; no labels."""
    return huggingface(spec, "webdataset", spec.urls("tar"), "jpg")


def huggingface_folder(spec):
    """Plain HTTP, one object for each photograph; their names need not be listed; no labels. One process reads,
    whatever `threads` says, since datasets does not divide single files among workers."""
    names = sorted(glob.glob("*/*.jpg", root_dir=f"{spec.bucket}/folder"))
    return huggingface(spec, "imagefolder", [f"{spec.endpoint}/bucket/folder/{name}" for name in names], "image")


PEERS = {peer.__name__: peer for peer in (saturate_shard, saturate_block, saturate_tar, saturate_folder, litdata,
                                          litdata_folder, mosaic, webdataset, huggingface_tar, huggingface_folder)}
# The format that each reads.
FORMATS = {"saturate_shard": "shard", "saturate_block": "shard", "saturate_tar": "tar", "saturate_folder": "folder",
           "litdata": "litdata", "litdata_folder": "folder", "mosaic": "mds", "webdataset": "tar",
           "huggingface_tar": "tar", "huggingface_folder": "folder"}


def images_of(batch):
    if isinstance(batch, dict):
        return batch["image"]
    return batch[0] if isinstance(batch, (list, tuple)) else batch


def measure(make, spec):
    start = time.monotonic()
    images = first_images = 0
    first = passed = None
    whole = True
    for batch in make():
        pixels = images_of(batch)
        if tuple(pixels.shape[1:]) != (3, SIZE, SIZE):
            raise RuntimeError(f"a batch has the shape {tuple(pixels.shape)}")
        images += len(pixels)
        passed = time.monotonic() - start
        if first is None:
            first, first_images, cpu = passed, images, time.process_time()
        if spec.first_only or passed - first >= spec.seconds:
            whole = False
            break
    if first is None:
        raise RuntimeError("no batch came")
    return {"images": images, "seconds": passed, "first_s": first, "first_images": first_images,
            "cpu_s": time.process_time() - cpu, "whole": whole, "type": str(pixels.dtype).removeprefix("torch.")}


def main():
    spec = Spec(**json.loads(sys.argv[1]))
    home = pathlib.Path(spec.cache)
    os.environ.update({"HOME": str(home), "TMPDIR": str(home), "XDG_CACHE_HOME": str(home), "HF_HOME": str(home / "hf"),
                       "HF_HUB_DISABLE_TELEMETRY": "1", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
                       "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
                       "AWS_EC2_METADATA_DISABLED": "true"})
    if spec.endpoint:
        os.environ.update({"AWS_ENDPOINT_URL": spec.endpoint, "S3_ENDPOINT_URL": spec.endpoint})
    result = measure(PEERS[spec.peer](spec), spec)
    pathlib.Path(spec.result).write_text(json.dumps(result), encoding="utf-8")
    os._exit(0)  # the host ends what the loader has started


if __name__ == "__main__":
    main()
