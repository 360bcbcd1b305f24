"""What the planner is told about a target: its further memories and its core, with their prices."""

from __future__ import annotations

from collections.abc import Mapping

from tinytrain_compile.errors import CompileError
from tinytrain_compile.plan import CoreModel, Memory
from tinytrain_compile.target import Target


def further_memories(target: Target, sizes: Mapping[str, int]) -> tuple[Memory, ...]:
    """Memories of a target by name and size, with what they cost more than the first one; E0107 for one it lacks."""
    first, found = target.memories[0], list[Memory]()
    banks = {bank.name: bank for bank in target.memories[1:] if bank.writable and bank.size_bytes}
    for name, size in sizes.items():
        if name not in banks or size > banks[name].size_bytes:
            what = f"{target.name} has no such memory that a step may write"
            if name in banks:
                what = f"{size} B are asked for, {target.name} has {banks[name].size_bytes} B"
            known = ", ".join(f"{bank.name} ({bank.size_bytes} B)" for bank in banks.values()) or "none"
            raise CompileError("E0107", f"--memory {name}", what, f"further memories of this target: {known}")
        bank = banks[name]
        there, here = 1_000_000 // bank.bytes_per_us, 1_000_000 // first.bytes_per_us
        memory = Memory(
            name=name,
            capacity_bytes=size,
            extra_ps=max(there - here, 0),
            extra_pj=max(bank.pj_per_byte - first.pj_per_byte, 0),
            copy_ps=there + here,
            copy_pj=bank.pj_per_byte + first.pj_per_byte,
            setup_ps=bank.setup_ns * 1000,
        )
        found.append(memory)
    return tuple(found)


def core_model(target: Target) -> CoreModel:
    """The core's prices as the planner takes them."""
    core = target.core
    return CoreModel(
        clock_mhz=core.clock_mhz,
        int8_mac=core.int8_mac_millicycles,
        float_mac=core.float_mac_millicycles,
        element=core.element_millicycles,
        pj_per_cycle=core.pj_per_cycle,
    )
