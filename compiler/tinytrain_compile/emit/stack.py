"""What only the compiled code tells, and its public header says: the bound of the stack."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.ir.stages import SourceBundle


def unknown_stack(prefix: str) -> str:
    """The line of the header until the bound is known."""
    return f"/* {prefix.upper()}_STACK_BYTES is not known without --verify qemu. */"


def with_stack(bundle: SourceBundle, stack_bytes: int | None) -> SourceBundle:
    """The project whose header defines M_STACK_BYTES; as it is if nobody knows. No C file reads the macro."""
    prefix = bundle.interface.prefix
    name, line = f"{prefix}_train.h", unknown_stack(prefix)
    assert line in bundle.files[name]
    if stack_bytes is None:
        return bundle
    what = "/** Bytes of stack that a call takes at most, with the flags of verify/Makefile and without callbacks. */"
    known = f"{what}\n#define {prefix.upper()}_STACK_BYTES {stack_bytes}u"
    return replace(bundle, files={**bundle.files, name: bundle.files[name].replace(line, known)})
