"""Verification: the generated C runs on the host and under QEMU, and agrees. The only part that starts processes."""

from tinytrain_compile.verify.build import (
    Built,
    Compiled,
    FlashSizes,
    build,
    build_library,
    compile_project,
    flash_sizes,
    link_project,
)
from tinytrain_compile.verify.check import StaticFigures, VerifyMode, static_figures, verify
from tinytrain_compile.verify.compare import (
    TOLERANCE,
    LoadedReference,
    ReferenceRun,
    Rounded,
    State,
    Step,
    StepReference,
    compare_bytes,
    compare_loaded,
    compare_reference,
    compare_steps,
)
from tinytrain_compile.verify.count import COUNTED_STEP
from tinytrain_compile.verify.firmware import verification_files, verification_input
from tinytrain_compile.verify.run import RunResult, execute, parse_output, run_steps
from tinytrain_compile.verify.stack import StackBound, read_call_graph, stack_bound
from tinytrain_compile.verify.symbols import check_symbols, library_table, read_object
from tinytrain_compile.verify.tools import Tools, cross_version, find_tools, work_folder

__all__ = [
    "COUNTED_STEP",
    "TOLERANCE",
    "Built",
    "Compiled",
    "FlashSizes",
    "LoadedReference",
    "ReferenceRun",
    "Rounded",
    "RunResult",
    "StackBound",
    "State",
    "StaticFigures",
    "Step",
    "StepReference",
    "Tools",
    "VerifyMode",
    "build",
    "build_library",
    "check_symbols",
    "compare_bytes",
    "compare_loaded",
    "compare_reference",
    "compare_steps",
    "compile_project",
    "cross_version",
    "execute",
    "find_tools",
    "flash_sizes",
    "library_table",
    "link_project",
    "parse_output",
    "read_call_graph",
    "read_object",
    "run_steps",
    "stack_bound",
    "static_figures",
    "verification_files",
    "verification_input",
    "verify",
    "work_folder",
]
