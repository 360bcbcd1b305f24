"""Cycle figures of counted calls: models over exact counts of blocks of code, never measurements of a device.

Two models: "table" adds up instruction timings without wait states (Cortex-M3, M4, M33: loads 2, in a row 1, a taken
branch 2 more, fused multiply-adds 3, divisions 7 and 14); "llvm-mca:CPU" asks llvm-mca for the cycles of every block as
if it were repeated back to back.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.summary import CycleModel
from tinytrain_compile.target.model import Target, Toolchain
from tinytrain_compile.verify.tools import INSTALLED, TOOL_TIMEOUT_S, first_line, run_program

MCA_PROGRAMS = ("llvm-mca", "llvm-mca-14")
NO_MODEL = "the target's file names no cycle model"
MCA_HINT = "llvm-mca not found (apt-get install llvm)"
_ITERATIONS = 100
"""Times that llvm-mca repeats a block, its default: filling the pipeline the first time counts little."""
_ROUNDS = 12
"""Runs, after each of which lines with errors are dropped; the next run shows errors that these hid."""
_CONDITIONS = "eq|ne|lt|gt|le|ge|cs|cc|mi|pl|hi|ls|vs|vc"
_LEAST_SHARE = 0.0005
"""Share of all instructions below which a block counts one cycle per instruction."""
Block = tuple[int, int]
"""Address of the first instruction, number of instructions"""
Instruction = tuple[str, str]
"""Mnemonic, operands"""
_LINE = re.compile(r"\s*([0-9a-f]+):\s+(\S+)\s*([^@;]*)")


def read_blocks(path: Path) -> list[dict[Block, int]]:
    """Return, per call in order, how often each block was executed (written by the counting plugin)."""
    calls: list[dict[Block, int]] = []
    for line in path.read_text(encoding="ascii").splitlines():
        if line == "call":
            calls.append({})
        else:
            address, size, count = line.split()
            calls[-1][int(address, 16), int(size)] = int(count)
    return calls


def missing_for_cycles(target: Target) -> str:
    """Return why a target's model cannot give figures here; "" if it can."""
    if not target.cycle_model or target.toolchain is None:
        return NO_MODEL
    objdump = target.toolchain.objdump
    if shutil.which(objdump.name) is None:
        return f"{objdump.name} not found (apt-get install {objdump.packages})"
    return "" if target.cycle_model == "table" or _mca() is not None else MCA_HINT


def _mca() -> str | None:
    return next((path for path in map(shutil.which, MCA_PROGRAMS) if path is not None), None)


def disassembly(image: Path, toolchain: Toolchain) -> dict[int, Instruction]:
    """Return every instruction of an image by address. Errors: E0602."""
    objdump = toolchain.objdump
    program = shutil.which(objdump.name)
    if program is None:
        raise CompileError("E0114", "--cycles", f"{objdump.name} not found", f"install {objdump.packages}")
    command = [program, "-d", "--no-show-raw-insn", image.name]
    finished = run_program(command, image.parent, TOOL_TIMEOUT_S, "disassembling")
    if finished.exit_code != 0:
        raise CompileError("E0602", "--cycles", first_line(finished.output), "leave out --cycles")
    matches = (_LINE.match(line) for line in finished.output.splitlines())
    code = {int(m[1], 16): (m[2], m[3].strip()) for m in matches if m is not None}
    if not code:  # every instruction would count as a nop
        raise CompileError("E0602", "--cycles", f"{objdump.name} printed no instruction of {image.name}", INSTALLED)
    return code


def cycle_model(target: Target, image: Path, step: Mapping[Block, int], infer: Mapping[Block, int]) -> CycleModel:
    """Return cycles of a training step and of an inference by a target's model, or the reason why there are none."""
    model, toolchain = target.cycle_model, target.toolchain
    if not model or toolchain is None:
        return CycleModel("none", None, None, NO_MODEL)
    code = disassembly(image, toolchain)
    if model == "table":
        return CycleModel(model, _table(code, step), _table(code, infer))
    program = _mca()
    if program is None:
        return CycleModel(model, None, None, MCA_HINT)
    cpu = model.partition(":")[2]
    prices = _Mca(program, toolchain.llvm_triple, cpu, image.parent).prices(code, step, infer)
    return CycleModel(model, _total(prices, step), _total(prices, infer))


def _total(prices: Mapping[Block, float], calls: Mapping[Block, int]) -> int:
    return round(sum(prices[block] * count for block, count in calls.items()))


def _instructions(code: Mapping[int, Instruction], block: Block) -> Iterator[Instruction]:
    """Yield the instructions of a block, in order."""
    address, count = block
    for _ in range(count):
        yield code.get(address, ("nop", ""))
        address += 2
        if address not in code:
            address += 2


# ---- the table ------------------------------------------------------------------------------------------------------


def _table(code: Mapping[int, Instruction], calls: Mapping[Block, int]) -> int:
    return sum(count * table_cycles(_instructions(code, block)) for block, count in calls.items())


def table_cycles(instructions: Iterable[Instruction]) -> int:
    """Return cycles of a block whose last instruction, if it is a branch, is taken; no wait states."""
    total, before_was_memory = 0, False
    for mnemonic, operands in instructions:
        memory = mnemonic.startswith(("ldr", "str", "vldr", "vstr"))
        several = mnemonic.startswith(("ldm", "stm", "push", "pop", "vldm", "vstm", "vpush", "vpop"))
        if mnemonic.startswith(("ldrd", "strd")):
            total += 3
        elif several:
            total += 1 + _registers(operands)
        elif memory:
            total += 1 if before_was_memory else 2
        else:
            total += _other_cycles(mnemonic)
        before_was_memory = memory or several
    return total


def _other_cycles(mnemonic: str) -> int:
    if mnemonic.startswith(("vfma", "vmla", "vfms", "vmls", "vfnm", "vnml")) or _is_branch(mnemonic):
        return 3
    if mnemonic.startswith(("vdiv", "vsqrt")):
        return 14
    return 7 if mnemonic.startswith(("sdiv", "udiv")) else 1


def _is_branch(mnemonic: str) -> bool:
    return re.fullmatch(rf"(b|bl|bx|blx|b({_CONDITIONS})|cbn?z|tb[bh])(\.[nw])?", mnemonic) is not None


def _registers(operands: str) -> int:
    """Count the registers of a list such as {r4-r7, lr}."""
    found = re.search(r"\{(.*?)\}", operands)
    parts = found[1].split(",") if found else []
    ranges = (re.fullmatch(r"\s*[rsd](\d+)-[rsd](\d+)\s*", part) for part in parts)
    return sum(int(m[2]) - int(m[1]) + 1 if m else 1 for m in ranges)


# ---- llvm-mca -------------------------------------------------------------------------------------------------------


class _Mca:
    """Cycles of blocks by llvm-mca, all in one run; instructions that it cannot read become nops."""

    def __init__(self, program: str, triple: str, cpu: str, folder: Path) -> None:
        self._command = [program, f"-mtriple={triple}", f"-mcpu={cpu}", f"-iterations={_ITERATIONS}"]
        self._folder = folder

    def prices(self, code: Mapping[int, Instruction], *calls: Mapping[Block, int]) -> dict[Block, float]:
        """Return cycles of one execution of every block."""
        weight = {block: 0 for call in calls for block in call}
        for call in calls:
            for block, count in call.items():
                weight[block] += block[1] * count
        least = _LEAST_SHARE * sum(weight.values())
        blocks = [block for block, share in weight.items() if share >= least]
        found = dict(zip(blocks, self._cycles(blocks, code), strict=True))
        return {block: found.get(block, float(block[1])) for block in weight}

    def _cycles(self, blocks: list[Block], code: Mapping[int, Instruction]) -> list[float]:
        lines = [".syntax unified", ".thumb"]
        for number, block in enumerate(blocks):
            texts = [text for item in _instructions(code, block) if (text := mca_text(*item))]
            lines += [f"@ LLVM-MCA-BEGIN b{number}", *(texts or ["nop"]), "@ LLVM-MCA-END"]
        output = ""
        for _ in range(_ROUNDS):  # some errors hide others
            (self._folder / "blocks.s").write_text("\n".join(lines) + "\n", encoding="ascii")
            found = self._folder / "cycles.txt"  # a file: warnings would come in the middle of a line
            command = [*self._command, "-o", found.name, "blocks.s"]
            output = run_program(command, self._folder, TOOL_TIMEOUT_S, "llvm-mca").output
            bad = {int(number) - 1 for number in re.findall(r"blocks\.s:(\d+):\d+: error", output)}
            unknown = set(re.findall(r"note: instruction:\s+(\S+)", output))
            bad |= {index for index, line in enumerate(lines) if line.split(" ")[0] in unknown}
            text = found.read_text(encoding="utf-8") if found.exists() else ""  # there is none after an error
            totals = re.findall(r"^Total Cycles:\s+(\d+)", text, re.MULTILINE)
            cycles = [int(n) / _ITERATIONS for n in totals]
            if len(cycles) == len(blocks):
                return cycles
            lines = ["nop" if index in bad else line for index, line in enumerate(lines)]
        raise CompileError("E0602", "--cycles", f"llvm-mca: {first_line(output)}", "leave out --cycles")


def mca_text(mnemonic: str, operands: str) -> str:
    """Return an instruction in a form that llvm-mca reads: no width, no condition of an IT block, branches to
    themselves.

    "" for IT.
    """
    name = mnemonic.removesuffix(".n")
    if re.fullmatch(r"it[te]{0,3}", name):
        return ""
    name = re.sub(r"^(ldr|str|ldrs?b|strb|ldrs?h|strh)\.w$", r"\1", name)
    operands = re.sub(r"[0-9a-f]+ <[^>]*>", ".+8", operands)
    if re.fullmatch(rf"(b|bl|b({_CONDITIONS}))(\.w)?", name):
        return f"{name} ."
    known = "mov|add|sub|rsb|asr|lsl|lsr|ldr|str|orr|and|eor|cmp|mvn|adc|mla|mul|ldrsb|strb|neg"
    name = re.sub(rf"^({known})({_CONDITIONS})(\.w)?$", r"\1\3", name)
    return f"{name} {operands}"
