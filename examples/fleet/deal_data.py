"""Writes data.npz: what each of eight devices sees. Needs scikit-learn (`pip install -e '.[dev]'`) for the digits.

The images that examples/digits/pretrain.py did not train on are dealt out: each device has 80 to be tested on, of all
digits, and 40 to learn from, of five digits alone, as users differ. It sees all of them in its own way: turned, with
less contrast, on a background, with noise.

    python examples/fleet/deal_data.py --seed 20 --out other.npz
"""

# make_data is that of examples/digits.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "digits"))

from make_data import Images, askew, parts  # noqa: E402

DEVICES, TRAIN, TEST, SEED = 8, 40, 80, 19
KINDS = 5
"""Digits that a device learns from."""
ANGLES = (20, 40, 25, 35, 15, 45, 30, 38)  # degrees
CONTRASTS = (1.0, 0.7, 0.85, 0.6, 0.9, 0.75, 0.8, 0.65)
BACKGROUNDS = (0.0, 0.15, 0.05, 0.2, 0.05, 0.1, 0.1, 0.15)
NOISES = (0.05, 0.15, 0.1, 0.05, 0.2, 0.1, 0.05, 0.15)


def seen(images: Images, device: int, seed: tuple[int, ...]) -> Images:
    """As this device sees them: bytes, 255 is 1.0."""
    rng = np.random.default_rng(seed)
    turned = np.stack(
        [askew(image, ANGLES[device] + rng.uniform(-5, 5), rng.uniform(-0.5, 0.5, 2)) for image in images]
    )
    dim = BACKGROUNDS[device] + CONTRASTS[device] * turned + rng.normal(0, NOISES[device], turned.shape)
    return np.rint(np.clip(dim, 0, 1) * 255).astype(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=SEED, help=f"of who gets which images, and how (default: {SEED})")
    parser.add_argument("--out", type=Path, default=HERE / "data.npz", help="(default: data.npz beside this file)")
    given = parser.parse_args()
    _, *rest = parts()
    images, labels = (np.concatenate(kind) for kind in zip(*rest, strict=True))
    found: dict[str, list[Images]] = {"x": [], "y": [], "x_test": [], "y_test": []}
    order = np.random.default_rng(given.seed).permutation(len(labels))
    tests, rest = np.split(order, [DEVICES * TEST])
    by_digit = {digit: iter(rest[labels[rest] == digit]) for digit in range(10)}
    for device in range(DEVICES):
        digits = [(3 * device + more) % 10 for more in range(KINDS)]
        own = np.array([next(by_digit[digit]) for _ in range(TRAIN // KINDS) for digit in digits])
        for part, indices in (("", own), ("_test", tests[device * TEST : (device + 1) * TEST])):
            found[f"x{part}"].append(seen(images[indices], device, (given.seed, device, len(part))))
            found[f"y{part}"].append(labels[indices].astype(np.uint8))
    x, y, x_test, y_test = (np.stack(found[name]) for name in ("x", "y", "x_test", "y_test"))
    np.savez_compressed(given.out, x=x, y=y, x_test=x_test, y_test=y_test)


if __name__ == "__main__":
    main()
