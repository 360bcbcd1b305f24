"""Runs the generated project against the numpy reference, for the driver: every plan of an image in its own arena."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.checks.data_notes import exploding_note
from tinytrain_compile.driver.trial import like_one
from tinytrain_compile.ir.stages import Samples, SourceBundle, TrainGraph
from tinytrain_compile.ir.summary import DerivativeAgreement, FileAgreement, Summary, VerifyReport
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.quantize import count_saturations
from tinytrain_compile.reference.rounding import StepwiseReference
from tinytrain_compile.reference.trainer import run_reference
from tinytrain_compile.report.trained import loss_name
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.compare import LoadedReference, ReferenceRun
from tinytrain_compile.verify.heard import HeardReference

SWITCHED_OFF = VerifyReport("none", 0, "skipped", "verification was switched off (--verify none)")


def verified(
    summary: Summary,
    bundle: SourceBundle,
    samples: Samples,
    options: CompileOptions,
    target: Target,
    progress: Callable[[str, float], None],
    agreed: tuple[FileAgreement | None, DerivativeAgreement | None],
    loaded: LoadedReference | None,
    smaller: Sequence[Candidate] = (),
) -> Summary:
    """Return the summary with what the check found; errors as `verify.verify`.

    agreed: how the model file agrees with the reference, and its derivative with a step of that.
    loaded: what a project that does not train has to give. smaller: further plans, as in the bundle.
    """
    from tinytrain_compile.verify.check import verify

    progress("running the numpy reference", 0.62)
    train = summary.train.on_windows
    whole = _whole(train, samples, options) if loaded is None else None
    reference = loaded or whole or StepwiseReference(train, samples, options.seed)
    progress(f"building and running the firmware ({options.verify})", 0.75)
    steps, batch = options.verify_steps if loaded is None else 0, summary.train.batch
    cycles = _expected_cycles(summary, target, steps * batch)
    for one, interface in zip(smaller, bundle.smaller, strict=True):
        own = like_one(one.train, train)
        plan, its = replace(bundle, interface=interface), reference
        if own.micro_batch != train.micro_batch:  # losses and outputs are those of its calls
            its = _whole(own, samples, options) or StepwiseReference(own, samples, options.seed)
        verify(plan, target, samples, its, options.verify, steps=steps, batch=batch, expected_cycles=cycles)
    report = verify(
        bundle,
        target,
        samples,
        reference,
        options.verify,
        steps=steps,
        batch=batch,
        expected_cycles=cycles,
        count=options.count or options.cycles,
        cycles=options.cycles,
        file=agreed[0],
        heard=_heard(summary, samples, options),
    )
    saturations = None if whole is None else count_saturations(train, whole.states[-1])
    report = replace(report, derivative=agreed[1], saturations=saturations)
    notes = (*exploding_note(train, samples, report, options, loss_name(summary)), *summary.notes)
    return replace(summary, verify=report, notes=notes, code_bytes=report.code_bytes, const_bytes=report.const_bytes)


def _expected_cycles(summary: Summary, target: Target, samples: int) -> int | None:
    """Return what training on so many samples, and the inferences beside it, take by the target's model."""
    if summary.choice is None:
        return None
    calls = -(-samples // summary.train.micro_batch) + 2
    return calls * summary.choice.cost.ps * target.core.clock_mhz // 1_000_000


def _heard(summary: Summary, samples: Samples, options: CompileOptions) -> HeardReference | None:
    """Return what m_hear has to give of the first sample's rows; None without --listen on."""
    if summary.plan.listening is None:
        return None
    from tinytrain_compile.reference.stream import StreamReference  # only if it is asked for (ADR 49)

    return StreamReference(summary.train.on_windows, summary.plan.listening, samples.x[0], options.seed)


def _whole(train: TrainGraph, samples: Samples, options: CompileOptions) -> ReferenceRun | None:
    """Return a whole run, which integers have to equal; None of float32, which is compared step by step."""
    return run_reference(train, samples, options.verify_steps) if train.integer else None
