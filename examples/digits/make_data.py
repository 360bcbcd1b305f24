"""Writes data.npz, what the device sees, and calib.npz, typical inputs for --quant int8.

Needs scikit-learn (`pip install -e '.[dev]'`) for the digits themselves.
The 1,797 images of 8x8 pixels are cut into three parts that share no image: upright ones for pretrain.py, and two
parts, rotated and shifted as if the sensor had been mounted askew, for training and for testing on the device.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

PRETRAIN, TRAIN = 600, 700  # images; the other 497 are the device's test set
TYPICAL = 64  # images of either kind in calib.npz
SEED = 8
ANGLE, ANGLE_SPREAD = 30.0, 6.0  # degrees
SHIFT = 0.5  # pixels, in each direction

Images = NDArray[np.float32]
Labels = NDArray[np.int32]


def parts() -> tuple[tuple[Images, Labels], ...]:
    """(images, labels) for pretraining, for training on the device and for testing there. Pixels are 0 to 1."""
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    images, labels = (digits.images[order] / 16).astype(np.float32), digits.target[order].astype(np.int32)
    cuts = [PRETRAIN, PRETRAIN + TRAIN]
    return tuple(zip(np.split(images, cuts), np.split(labels, cuts), strict=True))


def askew(image: Images, degrees: float, shift: NDArray[np.float64]) -> Images:
    """The image turned about its centre and shifted: every pixel is interpolated from the four that it falls among."""
    angle = np.deg2rad(degrees)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre = (np.array(image.shape) - 1) / 2
    grid = np.stack(np.meshgrid(*map(np.arange, image.shape), indexing="ij"), -1)
    where = (grid - centre - shift) @ turn.T + centre
    low = np.floor(where).astype(int)
    share = where - low
    padded = np.pad(image, 2)
    result = np.zeros(image.shape)
    for down in (0, 1):
        for right in (0, 1):
            weight = np.abs(1 - down - share[..., 0]) * np.abs(1 - right - share[..., 1])
            row = np.clip(low[..., 0] + down + 2, 0, len(padded) - 1)
            column = np.clip(low[..., 1] + right + 2, 0, len(padded) - 1)
            result += weight * padded[row, column]
    return result.astype(np.float32)


def seen_by_device(images: Images, seed: int) -> Images:
    """All images askew, each a little differently."""
    rng = np.random.default_rng(seed)
    angles = rng.uniform(ANGLE - ANGLE_SPREAD, ANGLE + ANGLE_SPREAD, len(images))
    shifts = rng.uniform(-SHIFT, SHIFT, (len(images), 2))
    return np.stack([askew(*each) for each in zip(images, angles, shifts, strict=True)])


def device_data() -> dict[str, NDArray[np.generic]]:
    """x, y to train on, x_test, y_test held back; images in ONNX layout (samples, 1, 8, 8), 256 grey levels, 0 to 1."""
    _, train, test = parts()
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, (images, labels), seed in (("", train, 1), ("_test", test, 2)):
        grey = np.rint(seen_by_device(images, seed) * 255).astype(np.float32) / np.float32(255)
        arrays[f"x{name}"] = grey[:, None]
        arrays[f"y{name}"] = labels
    return arrays


def calibration_data() -> dict[str, NDArray[np.generic]]:
    """x: what the model was made for and what the device sees, from the parts that are trained on."""
    (upright, _), _, _ = parts()
    return {"x": np.concatenate([upright[:TYPICAL, None], device_data()["x"][:TYPICAL]])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder (default: this one)")
    folder = parser.parse_args().out
    for name, arrays in (("data.npz", device_data()), ("calib.npz", calibration_data())):
        np.savez_compressed(folder / name, **arrays)
        print(f"wrote {folder / name}: {', '.join(f'{key} {array.shape}' for key, array in arrays.items())}")


if __name__ == "__main__":
    main()
