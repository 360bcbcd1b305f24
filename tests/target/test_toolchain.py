"""Toolchain files, and what a core's file says of them."""

from __future__ import annotations

import re

import pytest

from testing.cores import BUILT, MAIN, RISCV, RUN
from tests.verify import tiny_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.target.loader import list_toolchains, load_toolchain, parse_target, parse_toolchain
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.firmware import verification_files
from tinytrain_compile.verify.tools import Tools

ARM = (data_dir("targets") / "toolchains" / "arm-none-eabi.toml").read_text()
M7, M23 = ((data_dir("targets") / f"{name}.toml").read_text() for name in ("cortex-m7", "cortex-m23"))


def test_every_toolchain_loads_under_its_own_name() -> None:
    assert [load_toolchain(name).name for name in list_toolchains()] == list(list_toolchains())


@pytest.mark.parametrize("target", BUILT, ids=lambda target: target.name)
def test_a_core_has_the_stack_table_and_the_attributes_of_its_architecture(target: Target) -> None:
    assert target.architecture is not None and target.toolchain is not None
    assert target.architecture is target.toolchain.architectures[target.architecture.name]
    assert bool(target.architecture.attributes) == (target.toolchain is MAIN.toolchain), "only Arm's objects have them"
    assert {"memcpy", "memset"} <= target.architecture.library_stack.keys()


def test_cores_without_a_machine_are_built_all_the_same() -> None:
    assert {target.name for target in BUILT} - {target.name for target in (*RUN, *RISCV)} == {"cortex-m85"}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            'architecture = "armv7e-m"',
            'architecture = "armv9-m"',
            "key 'architecture' is 'armv9-m', which arm-none-eabi does not know: take one of armv6-m, armv7-m, "
            "armv7e-m, armv8-m.base, armv8-m.main, armv8.1-m.main, or describe it in "
            "targets/toolchains/arm-none-eabi.toml",
        ),
        ('architecture = "armv7e-m"', "", "key 'architecture' is missing: name the core's, one of armv6-m"),
        ('toolchain = "arm-none-eabi"', "", "key 'toolchain' is missing: name who compiles for the core, one of arm-"),
        ('toolchain = "arm-none-eabi"', 'toolchain = "../x"', "key 'toolchain' names no file in targets/toolchains"),
    ],
)
def test_a_core_that_nobody_can_build_is_refused_in_a_line(old: str, new: str, says: str) -> None:
    assert old in M7
    with pytest.raises(CompileError) as caught:
        parse_target(M7.replace(old, new, 1), "my-core.toml")
    text = str(caught.value)
    assert caught.value.code == "E0103" and says in text and "\n" not in text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("set_bits = 0x00000008", "set_bits = 0", r"key 'qemu.registers\[0\].set_bits' must be an integer from 1"),
        ('why = "CCR', 'why = "*/ CCR', r"key 'qemu.registers\[0\].why' goes into a comment of C"),
    ],
)
def test_registers_of_the_machine_are_checked(old: str, new: str, says: str) -> None:
    assert old in M23
    with pytest.raises(CompileError, match=says):
        parse_target(M23.replace(old, new, 1), "my-core.toml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[emulator]", "[emulators]", "key 'emulator' is missing"),
        ('prefix = "', 'prefixes = "', "key 'compiler.prefix' is missing"),
        ('port = "cortex_m"', 'port = "cortex_m"\nmore = 1', "key 'start_up.more' is not known"),
        ("attributes = [10]", 'attributes = ["v7"]', "key 'architectures.armv7-m.attributes' must be a list of integ"),
        ('library_stack = "armv7-m"', 'library_stack = "v7"', "library_stack' names no table of library_stack"),
        ('"__aeabi_f"', '"("', "key 'library.float_helpers' is not a regular expression"),
    ],
)
def test_wrong_keys_of_a_toolchain_are_named(old: str, new: str, says: str) -> None:
    assert old in ARM
    with pytest.raises(CompileError, match=says) as caught:
        parse_toolchain(ARM.replace(old, new, 1), "toolchains/x.toml")
    assert caught.value.code == "E0103"


@pytest.mark.parametrize("target", RISCV, ids=lambda target: target.name)
def test_another_family_of_cores_is_another_file(target: Target) -> None:
    """Names of programs, flags and options of the emulator come from the file; the start-up code is a port."""
    makefile = verification_files(tiny_model.bundle(), target)["verify/Makefile"]
    assert "riscv64-unknown-elf-gcc --specs=picolibc.specs " in makefile and "arm" not in makefile
    assert "qemu-system-riscv32 -M virt -display none" in makefile and "-bios none -semihosting" in makefile
    assert Tools("gcc", None, None, target.toolchain).missing_for_qemu() == (
        "riscv64-unknown-elf-gcc and qemu-system-riscv32 not found "
        "(apt-get install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc)"
    )


@pytest.mark.parametrize(
    ("name", "double", "float_"),
    [
        *(
            (name, False, True)
            for name in ("__addsf3", "__mulsf3", "__negsf2", "__gtsf2", "__fixunssfsi", "__floatsisf")
        ),
        *((name, True, False) for name in ("__adddf3", "__extendsfdf2", "__truncdfsf2", "__floatunsidf", "__lttf2")),
        *((name, False, False) for name in ("__udivdi3", "__clzsi2", "__ashldi3", "__floatdisf", "memcpy")),
    ],
)
def test_helpers_of_riscv_that_compute_floats(name: str, double: bool, float_: bool) -> None:
    """With an FPU none of the second kind may be called; 64-bit integers have no instruction for their conversion."""
    toolchain = load_toolchain("riscv64-unknown-elf")
    found = tuple(bool(re.match(names, name)) for names in (toolchain.double_helpers, toolchain.float_helpers))
    assert found == (double, float_) and not re.match(toolchain.hidden_helpers, name)
