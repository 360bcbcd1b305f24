"""Eight devices learn together: each from its own images, all from each other's deltas.

usage: run.py [--rounds 10] [--plain] [--data FILE.npz]
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import numpy as np
from averaging import Rows, plain
from fleet import DATA, Device, alone, build, fleet, together

import tinytrain_compile as tt


def line(name: str, row: list[float]) -> str:
    each = " ".join(f"{value:5.1f}" for value in row)
    return f"{name:<22} {np.mean(row):5.1f}   {min(row):5.1f}   {each}"


def averaged(devices: list[Device], deltas: tt.Deltas, rounds: int, without_flower: bool) -> Rows:
    if without_flower:
        return plain(devices, deltas, rounds)
    try:
        from with_flower import flower
    except ModuleNotFoundError as problem:
        raise SystemExit(f"{problem}: run `make fleet`, which has an environment for it, or use --plain") from problem
    logging.disable(logging.WARNING)  # Flower says in every round what it does
    return flower(devices, deltas, rounds)


def slot_table(firmware: tt.Compiled) -> tt.Deltas:
    """As whoever has the output folder reads it."""
    with tempfile.TemporaryDirectory() as folder:
        firmware.save(folder)
        return tt.Deltas.load(Path(folder) / "digits_delta.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="exchanges of deltas (default: 10)")
    parser.add_argument("--plain", action="store_true", help="average without Flower, by the same arithmetic")
    parser.add_argument("--data", type=Path, default=DATA, help="what deal_data.py has written (default: data.npz)")
    arguments = parser.parse_args()
    firmware = build()
    deltas = slot_table(firmware)
    with fleet(firmware, path=arguments.data) as devices:
        rows = averaged(devices, deltas, arguments.rounds, arguments.plain)
        ((writes, size),) = {(len(device.saved), *set(device.saved)) for device in devices}
    print("accuracy on test images  mean   worst   of each device")
    for turn, row in enumerate(rows):
        print(line("not trained" if turn == 0 else f"fleet, round {turn}", row))
    print(line("each alone", alone(firmware, arguments.rounds, path=arguments.data)[-1]))
    print(line("all data in one place", together(firmware, arguments.rounds, path=arguments.data)[-1]))
    print(f"each device, a round: {deltas.table.size_bytes} B sent, as many received")
    print(f"each device, in all: {writes} checkpoints of {size} B written in {arguments.rounds} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
