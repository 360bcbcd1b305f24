"""SHA-256 of the C of the examples and of three real networks (`make hash-c`), for changes that must not change it.

    python scripts/hash_c.py --write before.json        # on the tree before
    python scripts/hash_c.py --compare before.json      # on the tree after: names every file that differs; exit code 1
    python scripts/hash_c.py --only digits,mcunet --compare before.json

Digits and the networks in both formats on the Cortex-M0+, M7 and M55. Nothing is verified here, so no compiler is run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testing.places import ROOT, SHARED

TARGETS = ("cortex-m0plus", "cortex-m7", "cortex-m55")
DIGITS = str(ROOT / "examples" / "digits" / "digits.onnx")
DATA = ("--data", str(ROOT / "examples" / "digits" / "data.npz"))


def scheme(name: str) -> tuple[str, ...]:
    """Flags of a published update scheme."""
    return ("--quant", "int8", "--update", str(SHARED / "schemes" / f"{name}.toml"))


def model(name: str) -> str:
    """Path of a real network."""
    return str(SHARED / "models" / f"{name}.onnx")


CASES = {
    "digits fp32": (DIGITS, *DATA),
    "digits int8": (DIGITS, *DATA, "--quant", "int8", "--calib", DATA[1]),
    "mcunet fp32": (model("mcunet-5fps-10c"), "--update", "last:6"),
    "mcunet int8": (model("mcunet-5fps-10c-qdq"), *scheme("mcunet-5fps-49kb")),
    "mbv2 fp32": (model("mbv2-w0.35-10c"), "--update", "last:6"),
    "mbv2 int8": (model("mbv2-w0.35-qdq"), *scheme("mbv2-w0.35-49kb")),
    "proxyless fp32": (model("proxyless-w0.3-10c"), "--update", "last:6"),
    "proxyless int8": (model("proxyless-w0.3-qdq"), *scheme("proxyless-w0.3-49kb")),
}


def hashes(flags: tuple[str, ...], target: str) -> dict[str, str]:
    """File name -> SHA-256, of the generated C files and headers."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "tinytrain_compile", *flags, "--target", target, "--verify", "none"]
        done = subprocess.run([*command, "-o", str(out)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
        files = sorted(path for path in out.rglob("*") if path.suffix in (".c", ".h"))
        return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main() -> None:
    """Print a row per case; write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="cases whose name and target contain one of these words")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--compare", type=Path)
    flags = parser.parse_args()
    words = flags.only.split(",") if flags.only else [""]
    before = json.loads(flags.compare.read_text(encoding="utf-8")) if flags.compare else {}
    now: dict[str, dict[str, str]] = {}
    different = 0
    for name in (f"{case} {target}" for case in CASES for target in TARGETS):
        if not any(word in name for word in words):
            continue
        case, target = name.rsplit(" ", 1)
        now[name] = hashes(CASES[case], target)
        whole = hashlib.sha256(json.dumps(now[name]).encode()).hexdigest()[:16]
        changed = [
            file
            for file in sorted({*now[name], *before.get(name, {})})
            if before.get(name, {}).get(file) != now[name].get(file)
        ]
        said = "" if not flags.compare else "equal" if not changed else "DIFFERS: " + ", ".join(changed)
        different += bool(flags.compare and changed)
        print(f"{name:32} {len(now[name]):3} files  {whole}  {said}", flush=True)
    if flags.write:
        flags.write.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
