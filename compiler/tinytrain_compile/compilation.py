"""A whole compilation: all stages, with the choice that learns on the user's samples, and the output folder."""

from __future__ import annotations

from tinytrain_compile.driver import pipeline
from tinytrain_compile.driver.checks.project import expected_files
from tinytrain_compile.driver.pipeline import Project, Result
from tinytrain_compile.driver.progress import Progress, silent
from tinytrain_compile.files.output_folder import check_place, write_output
from tinytrain_compile.learn.choice_by_data import choose_by_data
from tinytrain_compile.options.compile_options import CompileOptions


def make_project(options: CompileOptions, progress: Progress = silent) -> Project | Result:
    """Run all stages in memory; a Result if only a plan or a dump is asked for."""
    return pipeline.make_project(options, progress, choose_by_data)


def compile_model(options: CompileOptions, progress: Progress = silent) -> Result:
    """Run all stages and write the output folder. Raises CompileError; then the output folder is as it was."""
    if not options.dry_run and not options.dump_after:
        check_place(options.out, expected_files(options), options.force)
    made = make_project(options, progress)
    if isinstance(made, Result):
        return made
    written = write_output(options.out, made.files, made.inputs, options.force)
    return Result(made.summary, written.paths, written.digest)
