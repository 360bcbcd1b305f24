"""How well the wake words of pymicro-wakeword hear synthetic speakers before anything is trained: a table, by LiteRT.

usage: words.py [--utterances 6]
"""

from __future__ import annotations

import argparse
import json

import numpy as np
from recipe import MODELS, decisions, heard
from speech import DEVELOPMENT, KNOWN, recording
from stream import by_litert


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--utterances", type=int, default=6, help="of the word by each speaker (default: 6)")
    given = parser.parse_args()
    speakers = (*KNOWN, *DEVELOPMENT)
    print("| word | cutoff | heard | speakers with none | with all |\n|---|---:|---:|---:|---:|")
    for name in ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu"):
        settings = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))["micro"]
        shares = list[float]()
        for speaker in speakers:
            one = recording(speaker, (name.replace("_", " "),) * given.utterances, "words")
            calls = decisions(by_litert(MODELS / f"{name}.tflite", one.rows), settings["probability_cutoff"])
            shares.append(float(heard(calls, one.said).mean()))
        none, whole = shares.count(0), shares.count(1)
        share = f"{100 * np.mean(shares):.0f} %"
        print(
            f"| {name} | {settings['probability_cutoff']} | {share} | {none} of {len(shares)} | {whole} |", flush=True
        )


if __name__ == "__main__":
    main()
