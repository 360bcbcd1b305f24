"""Verification: the generated C runs on the host and under QEMU, and agrees. The only part that starts processes."""

from tinytrain_compile.verify.build import Built, Compiled, build, build_library, compile_project, link_project
from tinytrain_compile.verify.check import StaticFigures, VerifyMode, static_figures, verify
from tinytrain_compile.verify.compare import ReferenceRun, compare_bytes, compare_reference
from tinytrain_compile.verify.count import COUNTED_STEP
from tinytrain_compile.verify.firmware import verification_files, verification_input
from tinytrain_compile.verify.loaded import LoadedReference, compare_loaded
from tinytrain_compile.verify.results import RunResult, parse_output
from tinytrain_compile.verify.run import execute, run_steps
from tinytrain_compile.verify.sizes import FlashSizes, flash_sizes
from tinytrain_compile.verify.stack import StackBound, library_table, read_call_graph, stack_bound
from tinytrain_compile.verify.stepwise import TOLERANCE, Rounded, State, Step, StepReference, compare_steps
from tinytrain_compile.verify.symbols import check_symbols, read_object
from tinytrain_compile.verify.temporary import work_folder
from tinytrain_compile.verify.tools import Tools, cross_version, find_tools

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
