"""Instructions counted in QEMU are exact, belong to the function that they were executed for, and never vary."""

from __future__ import annotations

import dataclasses

import pytest

from testing.cores import NAMES, missing_tools
from tests.verify import tiny_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.summary import InstructionCounts
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.check import verify
from tinytrain_compile.verify.count import COUNTED_STEP

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools()),
]
BOARDS = NAMES
DATA = tiny_model.samples()
UPDATE = "for (int32_t i = 0; i < n; i++) {"


def counts(target: str = "cortex-m7", accumulates: bool = False, **faults: tuple[str, str]) -> InstructionCounts:
    bundle = tiny_model.bundle(accumulates=accumulates, **faults)  # type: ignore[arg-type]
    batch = 2 if accumulates else 1
    reference = tiny_model.reference(DATA, 2, batch=batch)
    report = verify(bundle, load_target(target), DATA, reference, "qemu", steps=2, batch=batch, count=True)
    assert report.counts is not None
    return report.counts


@pytest.mark.parametrize("target", BOARDS)
def test_counts_are_the_same_in_two_runs(target: str) -> None:
    first = counts(target)
    assert first == counts(target)
    assert first.step_index == COUNTED_STEP == 1
    assert set(first.infer) == {"tiny_infer", "tiny_k_dot"}
    assert set(first.step) == {"tiny_train_step", "tiny_k_dot", "tiny_k_update"}
    if load_target(target).features.fpu:  # the time of a software addition depends on its operands
        assert first.step["tiny_k_dot"] == first.infer["tiny_k_dot"]
    assert first.apply is None


@pytest.mark.parametrize("target", BOARDS)
def test_a_known_number_of_instructions_more_is_counted(target: str) -> None:
    """Seven more instructions in each of five turns (four weights and a bias) of a step, none in an inference."""
    planted = '#ifdef __arm__\n        __asm__ volatile("nop\\n nop\\n nop\\n nop\\n nop\\n nop\\n nop");\n#endif\n'
    before = counts(target, kernels=(UPDATE, f'{UPDATE}\n#ifdef __arm__\n __asm__ volatile("");\n#endif\n'))
    after = counts(target, kernels=(UPDATE, f"{UPDATE}\n{planted}"))
    assert after.step["tiny_k_update"] - before.step["tiny_k_update"] == 7 * 5
    assert {**after.step, "tiny_k_update": 0} == {**before.step, "tiny_k_update": 0}
    assert after.infer == before.infer


def test_helpers_count_for_their_callers() -> None:
    """A helper that is not inlined, of four instructions with its return, and the call."""
    helper = 'static __attribute__((naked, noinline)) void tt_wait(void) { __asm__("nop\\n nop\\n nop\\n bx lr"); }\n'
    on_arm = f"#ifdef __arm__\n{helper}#else\nstatic void tt_wait(void) {{ }}\n#endif\n"
    start = "void tiny_k_dot(const float *w"
    with_helper = (start, f"{on_arm}{start}")
    bundle = tiny_model.bundle(kernels=with_helper)
    kernels = bundle.files["tiny_kernels.c"].replace("    y[0] = sum;", "    y[0] = sum;\n    tt_wait();")
    bundle = dataclasses.replace(bundle, files={**bundle.files, "tiny_kernels.c": kernels})
    report = verify(bundle, load_target("cortex-m7"), DATA, tiny_model.reference(DATA, 2), "qemu", steps=2, count=True)
    assert report.counts is not None
    assert set(report.counts.infer) == {"tiny_infer", "tiny_k_dot"}
    # the call is a jump (the last thing that the kernel does), instead of its own return
    assert report.counts.infer["tiny_k_dot"] == counts().infer["tiny_k_dot"] + 4


def test_with_accumulation_the_update_is_counted_apart() -> None:
    found = counts(accumulates=True)
    assert "tiny_accumulate" in found.step
    assert found.apply is not None
    assert set(found.apply) == {"tiny_apply"}
    assert 2 <= found.apply["tiny_apply"] <= 8  # clear a number, return 0


def test_code_bytes_are_those_of_the_model() -> None:
    found = counts()
    assert set(found.code_bytes) >= {"tiny_k_dot", "tiny_k_update", "tiny_train_step", "tiny_infer"}
    assert "main" not in found.code_bytes
    assert 16 <= found.code_bytes["tiny_k_dot"] <= 200


def test_one_step_is_not_enough() -> None:
    with pytest.raises(CompileError, match="E0602"):
        verify(
            tiny_model.bundle(),
            load_target("cortex-m7"),
            DATA,
            tiny_model.reference(DATA, 1),
            "qemu",
            steps=1,
            count=True,
        )
