"""Which files a project has, and where: flat, or as a library of a build system (--package)."""

from __future__ import annotations

from collections.abc import Mapping

from tinytrain_compile.driver.checks.prefix import prefix_of
from tinytrain_compile.emit import SOURCES, PackageFacts, package_files
from tinytrain_compile.ir.stages import Samples, SourceBundle
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target import Target


def expected_files(options: CompileOptions) -> tuple[str, ...]:
    """Files that every run writes: what the output folder is looked at for before anything takes time."""
    prefix, place = prefix_of(options), _place(options)
    made = (f"{prefix}_{name}" for name in ("train.h", "train.c", "internal.h", "kernels.c", "weights.c"))
    sources = (f"{place}{name}" for name in ("tt_runtime.h", *made))
    build = () if options.package else ("CMakeLists.txt",)
    return ("report.json", "plan.json", *build, *sources)


def project_files(bundle: SourceBundle, options: CompileOptions, target: Target) -> Mapping[str, str]:
    """The C project in the form that is asked for: path in the output folder -> text."""
    if options.package is None:
        return bundle.files
    return package_files(options.package, bundle, PackageFacts(options.model.stem, target))


def check_files(
    bundle: SourceBundle, samples: Samples, options: CompileOptions, target: Target, batch: int
) -> dict[str, str | bytes]:
    """The check program, beside the sources, and the samples that it reads."""
    from tinytrain_compile.verify.firmware import verification_files, verification_input

    files: dict[str, str | bytes] = dict(verification_files(bundle, target, _place(options)))
    files["verify/vectors.bin"] = verification_input(bundle.interface, samples, options.verify_steps, batch, None)
    return files


def _place(options: CompileOptions) -> str:
    return SOURCES if options.package else ""
