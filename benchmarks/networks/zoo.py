"""Compare training of networks of other frameworks with theirs: losses and weights of five steps (also --zoo3).

    python -m benchmarks zoo [--verify host] [PATTERN ...]
    python -m benchmarks zoo --zoo3 [--notes] [--verify host] [PATTERN ...]

Losses of five steps and, where they are given, final weights, by the numpy reference. --verify host: the command too.
--zoo3: those of ../shared/zoo3 (names like g_aux_deep.ts), or of --folder, a folder like it. --notes: what the compiler
remarks of each.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from testing.networks.zoo import ABSOLUTE, RELATIVE, ZOO3, Network, networks, networks3, trained, trained_in_integers
from testing.networks.zoo_verdicts import OTHERWISE, judged
from tinytrain_compile.compilation import compile_model


def compiled(network: Network) -> str:
    """What the command makes of it on the host: "" if it passes."""
    with tempfile.TemporaryDirectory() as folder:
        more, _ = OTHERWISE.get(network.name, ({}, ""))
        given = frozenset({"update", "data", *network.training(), *more})
        options = network.options(out=Path(folder) / "out", verify="host", target="cortex-m7", given=given, **more)
        data = network.data if network.trains else None
        result = compile_model(replace(options, data=data, verify_steps=3))
        return "" if result.summary is not None and result.summary.verify.result == "pass" else "not verified"


CLOSE, SHARE = 0.05, 0.9
"""int8: how near the first loss is to the float32 one, for this share of the networks that compile."""

_PAGE = """# Networks of other frameworks

For users who want to know whether a network of their framework compiles and trains correctly. Search the page for an
operator of yours (`GRU`, `Resize`, ...): the rows that name it are small networks that use it.

**Result:** {counts}. int8: {near} of {count} within {close:.0%}.

PyTorch 1.13 (torch-ts), PyTorch 2 (torch-dynamo) and Keras 3 with tf2onnx (keras) wrote the files. The networks have
random weights. Each framework trained its networks for five steps (SGD, one sample a step) and wrote down the losses.
The compiler's training has to give the same ones.

| result | meaning |
|---|---|
| equal | losses within {relative:g} (relative) and, if the framework gives them, final weights within {absolute:g} |
| imports | trains, but the framework gives no losses to compare with |
| changed | the file differs from the network that the framework trained |
| noted | the exporter has lost a parameter, and the compiler's note names the tensor that trains instead |
| refused | the compiler rejects it, with an error that names the reason |

The column int8 shows by how much the first loss with `--quant int8 --calib` differs from the float32 loss.

## What needs attention

{attention}

### int8 further away than {close:.0%}

{far}

The cause in `vit_timm`: the row of its class token varies by 0.02, the others by 0.4 to 0.8. An activation has one
scale for all rows, with a step of 0.013. The LayerNorm after it divides every row by its own deviation, so half of its
result for that row is rounding. If the class token is as large as the other rows, there is no such error.

## Equal without any option

{plain}

The page was made by `python -m benchmarks zoo --write docs/zoo.md`. With `--verify host` the C of each network also
runs on the host.
"""

PLUMBING = frozenset(("Constant", "Identity", "Cast", "Shape", "Unsqueeze", "Squeeze", "Gather", "Concat", "Slice"))
"""Operators that exporters put into most files to move data: a reader does not look for a network by them."""


def operators(network: Network) -> str:
    """Name the operators of the file, each once, in the order of their first use and without data movement."""
    names = dict.fromkeys(node.op_type for node in onnx.load(network.path, load_external_data=False).graph.node)
    return ", ".join([name for name in names if name not in PLUMBING] or list(names))


def page() -> str:
    """Write docs/zoo.md: networks that need attention with their remarks, then the others with their operators."""
    attention, plain, far = list[str](), list[str](), list[str]()
    counts: Counter[str] = Counter()
    near = count = 0
    for network in networks():
        verdict, remark = judged(network)
        counts[verdict] += 1
        more, why = OTHERWISE.get(network.name, ({}, ""))
        said = why if verdict == "equal" else remark.partition(": ")[2] if verdict in ("changed", "noted") else remark
        found = trained_in_integers(network, **more) if network.trains and verdict != "refused" else None
        integers = "-" if found is None else "refused" if found.error else f"{found.apart:.1%}"
        if found is not None and found.error is None:
            count, near = count + 1, near + (found.apart <= CLOSE)
            if found.apart > CLOSE:
                where = f"`{found.worst[0]}` ({found.worst[1]:.0%} of its range)" if found.worst else "none"
                far.append(f"* {network.name}: {found.loss:.4f} for {found.expected:.4f}; beyond 10 %: {where}")
        row = f"| {network.name} | {verdict} | {integers} |"
        (attention if said else plain).append(f"{row} {said or operators(network)} |")
    return _PAGE.format(
        relative=RELATIVE,
        absolute=ABSOLUTE,
        counts=", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items())),
        near=near,
        count=count,
        close=CLOSE,
        attention="\n".join(["| network | result | int8 | remark |", "|---|---|---|---|", *attention]),
        far="\n".join(far) or "None.",
        plain="\n".join(["| network | result | int8 | operators |", "|---|---|---|---|", *plain]),
    )


def in_integers(patterns: Sequence[str]) -> int:
    """Print what int8 makes of each network; 1 if too few are near, or anything fails inside."""
    near = count = refused = inside = 0
    for network in (network for pattern in patterns for network in networks(pattern) if network.trains):
        more, _ = OTHERWISE.get(network.name, ({}, ""))
        try:
            found = trained_in_integers(network, **more)
        except Exception as wrong:  # what is to be found: anything that is no CompileError
            inside += 1
            print(f"INTERNAL  {network.name:<36}{type(wrong).__name__}: {wrong}", flush=True)
            continue
        if found.error is not None:
            refused += 1
            print(f"refused   {network.name:<36}{found.error.code}: {found.error.what}", flush=True)
            continue
        count += 1
        near += found.apart <= CLOSE
        worst = f"; first beyond 10 % of its range: {found.worst[0]} ({found.worst[1]:.0%})" if found.worst else ""
        verdict = "near" if found.apart <= CLOSE else "far"
        loss = f"loss {found.loss:.4f} for {found.expected:.4f} ({found.apart:.1%})"
        print(f"{verdict:<10}{network.name:<36}{loss}{worst if verdict == 'far' else ''}", flush=True)
    print(
        f"int8: {near} of {count} within {CLOSE:.0%} of the float32 loss, {refused} refused, {inside} internal errors"
    )
    return int(bool(inside) or near < SHARE * count)


def chosen(asked: argparse.Namespace, pattern: str) -> Iterator[Network]:
    """The networks of the zoo that is asked for, by a pattern of their names."""
    return networks3(pattern, asked.folder) if asked.zoo3 else networks(pattern)


def remarks(network: Network) -> tuple[str, ...]:
    """What the compiler notes of a network that it trains."""
    more, _ = OTHERWISE.get(network.name, ({}, ""))
    try:
        return trained(network, **more).notes
    except Exception as wrong:  # what is to be found: anything that is no CompileError
        return (f"{type(wrong).__name__}: {wrong}",)


def main() -> int:
    """Print a line for each network and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--zoo3", action="store_true", help="the networks of ../shared/zoo3")
    parser.add_argument("--folder", type=Path, default=ZOO3, help="with --zoo3: another folder of such networks")
    parser.add_argument("--notes", action="store_true", help="print the remarks of the compiler, too")
    parser.add_argument("--verify", choices=("none", "host"), default="none")
    parser.add_argument("--int8", action="store_true", help="the first loss in int8 instead")
    parser.add_argument("--write", type=Path, help="write the table of docs/zoo.md to this file")
    asked = parser.parse_args()
    asked.patterns = asked.patterns or ["*" if asked.zoo3 else "*/*"]
    if asked.write:
        asked.write.write_text(page())
        return 0
    if asked.int8:
        return in_integers(asked.patterns)
    counts: Counter[str] = Counter()
    wrong = False
    for network in (network for pattern in asked.patterns for network in chosen(asked, pattern)):
        verdict, remark = judged(network)
        if asked.verify == "host" and verdict in ("equal", "imports", "changed"):
            try:
                problem = compiled(network)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            verdict, remark = ("FAILED", problem) if problem else (verdict, remark)
        counts[verdict] += 1
        wrong |= verdict.isupper()
        print(f"{verdict:<10}{network.name:<36}{remark}", flush=True)
        for note in remarks(network) if asked.notes else ():
            print(f"{'':<10}note: {note}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return int(wrong)
