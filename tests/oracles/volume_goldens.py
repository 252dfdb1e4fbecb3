"""Writes tests/goldens/image/volumes.{bin,txt}: scipy.ndimage.affine_transform of small volumes.

    python tests/oracles/volume_goldens.py      (scipy 1.16, numpy)

volumes.txt  a line for each case: pad_mode, depth, height and width of the input and of the output, the 12
             numbers of the matrix, in rows of 4
volumes.bin  for each case float32 of the input, of the trilinear output, and int32 of the labels of the nearest
             voxels of the input's numbers 0, 1, 2 ...; -100 outside
"""

import pathlib

import numpy as np
from scipy import ndimage

OUT = pathlib.Path(__file__).resolve().parents[1] / "goldens" / "image"
MODES = {"zero": "grid-constant", "reflect": "mirror"}


def rotation(angles):
    matrix = np.eye(3)
    for (a, b), angle in zip(((1, 2), (2, 0), (0, 1)), angles):
        turn = np.eye(3)
        turn[a, a] = turn[b, b] = np.cos(angle)
        turn[b, a], turn[a, b] = np.sin(angle), -np.sin(angle)
        matrix = matrix @ turn
    return matrix


def main():
    random = np.random.default_rng(7)
    lines, blobs = [], []
    cases = [((6, 7, 20), (6, 7, 20), 0.4), ((5, 9, 33), (4, 12, 40), 1.5), ((3, 4, 5), (8, 8, 24), 3.0),
             ((1, 8, 19), (1, 8, 19), 0.0)]
    for mode, scipy_mode in MODES.items():
        for size, out, reach in cases:
            angles = random.uniform(-reach, reach, 3)
            if size[0] == 1:
                angles = np.array([0.7, 0, 0])
            matrix = rotation(angles) @ np.diag([1, 1, 1] if size[0] == 1 else random.uniform(0.7, 1.4, 3))
            shift = random.uniform(-2, 2, 3) * (np.array(size) > 1)
            offset = (np.array(size) - 1) / 2 - matrix @ ((np.array(out) - 1) / 2) + shift
            rows = np.concatenate([matrix, offset[:, None]], 1).astype(np.float32)
            volume = random.normal(size=size).astype(np.float32)
            exact = rows.astype(np.float64)
            warped = ndimage.affine_transform(volume.astype(np.float64), exact[:, :3], exact[:, 3], out, order=1,
                                              mode=scipy_mode)
            # order=0 would round halves and bounds in its own way: the places are rounded here.
            grid = np.stack(np.meshgrid(*(np.arange(n) for n in out), indexing="ij"), -1)
            places = np.floor(grid @ exact[:, :3].T + exact[:, 3] + 0.5).astype(int)
            if mode == "reflect":
                for axis, length in enumerate(size):
                    period = max(2 * (length - 1), 1)
                    at = places[..., axis] % period
                    places[..., axis] = np.where(at < length, at, period - at)
            inside = ((places >= 0) & (places < size)).all(-1)
            flat = (places[..., 0] * size[1] + places[..., 1]) * size[2] + places[..., 2]
            labels = np.where(inside, flat, -100).astype(np.int32)
            lines.append(" ".join([mode, *map(str, size), *map(str, out), *(repr(float(v)) for v in rows.ravel())]))
            blobs += [volume.tobytes(), warped.astype(np.float32).tobytes(), labels.tobytes()]
    (OUT / "volumes.txt").write_text("\n".join(lines) + "\n")
    (OUT / "volumes.bin").write_bytes(b"".join(blobs))


main()
