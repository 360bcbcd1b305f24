"""A fault in the compiler's output must not get past verification: each planted one is found and named."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu
from tinytrain_compile.driver.code import generate as code
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.plan.check.plan import validate_plan
from tinytrain_compile.plan.options import PlanError, PlanOptions

Change = Callable[[str], str]


@pytest.fixture(scope="module")
def sound() -> chain.Project:
    """The MLP with its head trained: fc1 and fc2 are frozen."""
    return chain.project(chain.train_graph(models.mlp(), "last:2", learning_rate=0.1))


def planted(made: chain.Project, file: str, change: Change) -> chain.Project:
    text = made.bundle.files[file]
    changed = change(text)
    assert changed != text, "the fault was not planted"
    return replace(made, bundle=SourceBundle({**made.bundle.files, file: changed}, made.bundle.interface))


def failure(made: chain.Project, mode: str = "host") -> str:
    with pytest.raises(CompileError) as caught:
        chain.check(made, mode=mode)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.exit_code) == ("E0601", 5)
    text = str(caught.value)
    assert "\n" not in text
    return text


def once(pattern: str, new: str) -> Change:
    return lambda text: re.sub(pattern, new, text, count=1)


def in_function(name: str, pattern: str, new: str) -> Change:
    """A change inside the first function whose name matches."""

    def change(text: str) -> str:
        start = re.search(rf"^void {name}\(", text, re.MULTILINE)
        assert start is not None
        end = text.index("\n}\n", start.start()) + 3
        return text[: start.start()] + re.sub(pattern, new, text[start.start() : end], count=1) + text[end:]

    return change


def test_sound_project_passes(sound: chain.Project) -> None:
    assert chain.check(sound, mode="host").result == "pass"


def test_one_flipped_bit_of_a_frozen_weight(sound: chain.Project) -> None:
    """The highest bit of one number's mantissa: the first thing that is wrong is an output or a loss."""
    number = re.compile(r"(net_w_fc1_weight\[120\] = \{\n\s+)(-?[\d.]+)f")

    def flip(text: str) -> str:
        old = np.float32(number.search(text)[2])  # type: ignore[index]
        new = (old.reshape(1).view(np.uint32) ^ np.uint32(1 << 22)).view(np.float32)[0]
        return number.sub(rf"\g<1>{new}f", text)

    text = failure(planted(sound, "net_weights.c", flip))  # a ReLU may hide it from the first sample
    assert re.search(r"verify: (output before training|loss, step \d), index \d", text), text


def test_one_flipped_bit_of_a_trained_weight(sound: chain.Project) -> None:
    change = once(r"(net_w_fc3_weight\[40\] = \{\n\s+)-?\d", r"\g<1>7")
    assert "output before training" in failure(planted(sound, "net_weights.c", change))


def test_wrong_update_kernel_names_tensor_and_step(sound: chain.Project) -> None:
    change = in_function(r"net_sgd_update_4x10", r"(tt_sgd\([^;]*, )(\S+, 40\);)", r"\1-\2")
    text = failure(planted(sound, "net_kernels.c", change))
    assert re.search(r"'fc3_weight', step 0, index \d+: the C code gives \S+, the reference \S+", text), text


def test_wrong_backward_kernel_names_the_lower_layer(sound: chain.Project) -> None:
    change = in_function(r"net_tanh_grad_10", r"1\.0f", "1.5f")
    text = failure(planted(sound, "net_kernels.c", change))
    assert re.search(r"'fc2_(weight|bias)', step 0", text), text


def test_wrong_loss_kernel_names_the_loss(sound: chain.Project) -> None:
    change = in_function(r"net_negative_log_likelihood_1", r"0\.0f - acc", "0.25f - acc")
    text = failure(planted(sound, "net_kernels.c", change))
    assert "loss, step 0" in text, text


def test_corrupted_offset(sound: chain.Project) -> None:
    """A buffer that is kept for the backward pass is placed where another one is written meanwhile."""
    offsets = sound.plan.offsets
    assert offsets["fc3/Gemm.GemmGradInput"] + 40 == offsets["loss"], "the plan changed: choose another place"
    change = once(rf"AT_fc2_Tanh = {offsets['fc2/Tanh']},", f"AT_fc2_Tanh = {offsets['loss'] - 32},")
    text = failure(planted(sound, "net_train.c", change))
    assert re.search(r"verify: 'fc\d_\w+', step 0, index \d", text), text


def test_corrupted_offset_within_one_call(sound: chain.Project) -> None:
    """Input and output of one kernel in one place: GCC itself refuses what contradicts `restrict`."""
    offsets = sound.plan.offsets
    change = once(rf"AT_fc2_Tanh = {offsets['fc2/Tanh']},", f"AT_fc2_Tanh = {offsets['fc3/Gemm']},")
    with pytest.raises(CompileError) as caught:
        chain.check(planted(sound, "net_train.c", change), mode="host")
    assert (caught.value.code, caught.value.exit_code) == ("E0602", 5)
    assert "restrict" in str(caught.value)


def test_corrupted_plan_is_stopped_before_any_c(sound: chain.Project) -> None:
    """The validator that runs on every compile sees the same mistake without running anything."""
    options = PlanOptions(effort="quick", keep=(sound.train.loss.name,))
    validate_plan(sound.train.graph, sound.plan, options)
    offsets = dict(sound.plan.offsets)
    offsets["fc2/Tanh"] = offsets["fc3/Gemm"]
    with pytest.raises(PlanError):
        validate_plan(sound.train.graph, replace(sound.plan, offsets=offsets), options)


def test_write_beyond_the_arena(sound: chain.Project) -> None:
    size = sound.plan.arena_bytes
    change = once(r"(static void step_forward\w*\(.*\n\{\n)", rf"\g<1>    *F32({size}) = 1.0f;\n")
    text = failure(planted(sound, "net_train.c", change))
    assert "writes outside the arena" in text
    assert "above it" in text


def test_step_that_is_forgotten(sound: chain.Project) -> None:
    change = once(r"    net_sgd_update_4\(.*\);\n", "")
    text = failure(planted(sound, "net_train.c", change))
    assert "'fc3_bias', step 0, index " in text, text


def test_checkpoint_that_misses_a_tensor(sound: chain.Project) -> None:
    change = once(r"    \{AT_fc3_bias, 16u, HOLDS_FINITE\}, .*\n", "    {AT_fc3_weight, 16u, HOLDS_FINITE},\n")
    assert "checkpoint" in failure(planted(sound, "net_train.c", change))


@needs_qemu
@pytest.mark.qemu
def test_fault_on_the_board_only(sound: chain.Project) -> None:
    """One bit of difference between host and board, far below any tolerance."""
    change = in_function(
        r"net_sgd_update_4x10",
        r"\n\}",
        "\n#ifdef __arm__\n    w[7] = tt_from_bits(tt_bits(w[7]) ^ 1u);\n#endif\n}",
    )
    text = failure(planted(sound, "net_kernels.c", change), "qemu")
    assert re.search(r"'fc3_weight', step 0, index 7: QEMU mps2-an500 has .* \(0x[0-9a-f]{8}\), the host .*", text), (
        text
    )


@needs_qemu
@pytest.mark.qemu
def test_other_rounding_on_the_board_only(sound: chain.Project) -> None:
    """A board that multiplies and adds where the host fuses: caught as a difference of bits."""
    plain = "#ifdef __arm__\n#define TT_HAS_FMA 0\n#else\n#define TT_HAS_FMA 1\n#endif"
    change = once(r"#define TT_HAS_FMA 1", plain)
    assert "QEMU mps2-an500 has" in failure(planted(sound, "net_internal.h", change), "qemu")


def test_command_ends_with_exit_code_5_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound_emit = code.emit_project

    def faulty(*arguments: object) -> SourceBundle:
        bundle = sound_emit(*arguments)  # type: ignore[arg-type]
        change = in_function(r"net_gemm_grad_weight_sgd_update_4x10", r"-rate\[0\]", "rate[0]")
        files = {**bundle.files, "net_kernels.c": change(bundle.files["net_kernels.c"])}
        return replace(bundle, files=files)

    monkeypatch.setattr(code, "emit_project", faulty)
    path = write(models.mlp(), tmp_path)
    outcome = run(path, "-o", tmp_path / "out", "--verify", "host", "--lr", "0.5").check_error("E0601", 5)
    assert "'fc3_weight', step 0" in outcome.err
    assert [item.name for item in tmp_path.iterdir()] == ["net.onnx"]
