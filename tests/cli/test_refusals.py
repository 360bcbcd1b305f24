"""A mistyped command line is told what was meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.command import run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("net.onnx --optimizer mometum", "--optimizer: unknown value 'mometum'; did you mean momentum?"),
        ("net.onnx --package arduno", "did you mean arduino?"),
        ("net.onnx --runtime replai=9", "--runtime: unknown part 'replai'; did you mean replay?"),
        ("net.onnx --runtime early-stopping", "choose from replay (old samples), monitor (early stopping), schedule ("),
        ("net.onnx --report jsn", "did you mean json?"),
        ("net.onnx --target cortex_m4f", "did you mean cortex-m4?"),
        ("net.onnx --learning-rate 0.1", "did you mean --lr?"),
        ("net.onnx --optimiser adam", "did you mean --optimizer?"),
        ("net.onnx -lr 0.1", "-lr: tinytrain-compile has no such option; write --lr, with two dashes"),
        ("net.onnx --checkpoint a.bin", "leave it out: it is an option of tinytrain-compile export"),
        ("contribution net.onnx --arena 9KB", "leave it out: it is an option of tinytrain-compile"),
        ("net.onnx --zzz", "tinytrain-compile --help lists all options"),
        ("net.onnx --lr 0,01", "'0,01' is not a number; write a decimal point: --lr 0.01"),
        ("net.onnx --lr 1e-3,1e-4", "is not a number; give one: --lr 1e-3; finetune tries rates around it"),
        ("finetune net.onnx --data a.npz --seeds 0,1,2", "it is how many runs to make: --seeds 3"),
        ("net.onnx --batch 8,16", "give one: --batch 8; finetune --batches compares several"),
        ("net.onnx --weight-decay 1e-4,1e-3", "give one: --weight-decay 1e-4\n"),
        ("net.onnx --clip-norm 0,5", "write a decimal point: 0.5"),
        ("net.onnx --epsilon 0", "for example 1e-8"),
        ("net.onnx --arena 0.5MB", "'0.5MB' is not a size, a whole number above 0; write 512KB"),
        ("net.onnx --arena 64KB,32KB", "; for several arenas: --plans 64KB,32KB"),
        (
            "finetune net.onnx --data a.npz --warm-ups 10",
            "--warm-ups: '10' is not shares of all updates, from 0 to 0.5",
        ),
        ("finetune net.onnx --data a.npz --batches 1;8", "; for example --batches 1,8"),
        ("finetune net.onnx --data a.npz --clips none", "; 0 means no clipping: --clips 0,1"),
        ("finetune net.onnx --data a.npz -o best", "name the file that --config will read: best.toml"),
        ("net.onnx --lr auto", "'auto' is not a number; for example --lr 0.01"),
        ("net.onnx --lr=,1", "for example --lr 0.01"),
        ("net.onnx --batch 2.0", "'2.0' is not a whole number; for example --batch 2"),
        ("net.onnx --verify-steps 0", "--verify-steps: 0 is out of range; use 1 to 100000"),
        ("net.onnx --arena 64 KB", "64 KB: a size or time is one word; write 64KB"),
        ("net.onnx --arena", "--arena: needs a value; give --arena SIZE"),
        ("net.onnx own.npz", "for samples write --data own.npz"),
        ("net.onnx other.onnx", "a second model"),
        ("net.onnx spare", "spare: this word belongs to no option"),
        ("net.onnx --update fc1 fc2", "--update: a list has commas and no blanks; write --update fc1,fc2"),
        ("--update fc1 fc2 net.onnx", "write --update fc1,fc2\n"),
        ("net.onnx --update last 2", "write --update last:2\n"),
        ("finetune net.onnx --data a.npz --batches 8, 16 32", "write --batches 8,16,32\n"),
        ("net.onnx --runtime replay 100 monitor", "write --runtime replay=100,monitor\n"),
        ("net.onnx --runtime replay:100", "unknown part 'replay:100'; write replay=100"),
        (
            "net.onnx --frozen fc1 fc2",
            "--frozen: takes one value, and may be repeated; write --frozen fc1 --frozen fc2",
        ),
        ("--arena 9KB net.onnx other.onnx", "a second model"),
        ("net.onnx --package stm32cubeide", "for any other IDE or build system leave it out"),
        ("finetune net.onnx --data a.npz --runtime replay=9", "leave it out: --replay N and --averages N,N"),
        ("export net.onnx", "--checkpoint is missing; add --checkpoint FILE"),
        ("export net.onnx a.bin -o b.onnx", "--checkpoint is missing; write --checkpoint a.bin\n"),
        (
            "net.onnx finetune --data a.npz",
            "finetune: a command comes first; write tinytrain-compile finetune net.onnx --data a.npz\n",
        ),
        ("net.onnx export --checkpoint a.bin", "write tinytrain-compile export net.onnx --checkpoint a.bin\n"),
        ("finetun net.onnx", "did you mean tinytrain-compile finetune?"),
        ("net.onnx --input-shape 1,12", "write the input's name first: NAME=1,12"),
        ("net.onnx --input-shape x", "for example --input-shape x=1,3,32,32, if x is the input"),
        ("net.onnx --input-shape x=1,?", "give all dimensions as numbers"),
        ("fine-tune net.onnx", "did you mean tinytrain-compile finetune?"),
        ("train net.onnx", "train: is neither a command nor a model file; leave it out to compile net.onnx"),
        ("explain E0203", "explain: is neither a command nor a model file; write --explain, with two dashes"),
        ("list-targets", "write --list-targets, with two dashes"),
        ("version", "write --version, with two dashes"),
        ("help", "write --help, with two dashes"),
        ("--explain E9999", "--explain: there is no error 'E9999'"),
    ],
)
def test_what_was_meant(arguments: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(models.mlp(), tmp_path)
    monkeypatch.chdir(tmp_path)
    code = "E0102" if "--target" in arguments else "E0101"
    failed = run(*arguments.split()).check_error(code, 2)
    assert said in failed.err and failed.err.count("\n") == 1


def test_an_error_is_explained_by_its_number_alone() -> None:
    assert run("--explain", "401").out == run("--explain", "E0401").out


@pytest.mark.parametrize(
    ("name", "text", "arguments", "said"),
    [
        (
            "net.cc",
            "alignas(16) const unsigned char g_model[] = {0x20};",
            "net.cc",
            "the .tflite or .onnx file that it was",
        ),
        (
            "s.toml",
            '[[update]]\nlayers = ["fc1", "fc2"]',
            "net.onnx --update s.toml",
            "an entry [[update]] for each layer",
        ),
        ("b.toml", 'core = "cortex-m4"\nram = 1', "net.onnx --target b.toml", 'core_target = "cortex-m4"; '),
    ],
)
def test_files_in_a_form_of_their_own(name: str, text: str, arguments: str, said: str, tmp_path: Path) -> None:
    write(models.mlp(), tmp_path)
    (tmp_path / name).write_text(text)
    words = [str(tmp_path / word) if "." in word else word for word in arguments.split()]
    assert said in run(*words, "--dry-run").err


def test_four_arrays_are_named() -> None:
    x, y = np.zeros((4, 12), np.float32), np.zeros(4, np.int64)
    with pytest.raises(tt.CompileError, match=r'has four arrays; name them: \{"x": x, "y": y, "x_test"'):
        tt.compile(models.mlp(), data=(x, y, x[:2], y[:2]))
    with pytest.raises(tt.CompileError, match="its batches do not fit together"):
        tt.compile(models.mlp(), data=[(x, y), (x[:, :5], y)])
