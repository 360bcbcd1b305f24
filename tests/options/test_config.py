"""Options that a file gives (`--config`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.places import ROOT
from tests.e2e.command import run
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.errors import CompileError

DIGITS = ROOT / "examples" / "digits"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learning_rate = 1", "'learning_rate' is not an option of this command; did you mean lr?"),
        ("lr = 'much'", "give a number"),
        ("[lr]\na = 1", "is a table"),
        ("lr = [1, 2]", "give a number"),
        ("lr = 2020-01-01", "give a number"),
        ("batch = 1.5", "give a whole number"),
        ("batch = true", "give a whole number"),
        ("force = 2", "give true or false"),
        ("data = ['a', 'b']", "give a text"),
        ("epochs = 1e400", "give a whole number"),
        ("lr = ", "not TOML"),
        ("lr = 1\narena = 64KB # of the board\n", 'put quotes around a text: arena = "64KB"'),
        ("target = cortex-m4", 'put quotes around a text: target = "cortex-m4"'),
        ('arena = "64KB"\narena = "32KB"', "give arena once"),
        ("nesterov = True", "write nesterov = true"),
        ("lr: 0.1\nbatch: 4", "write = for the colon: lr = 0.1"),
        ('data = "C:\\samples\\own.npz"', 'write / for \\ in a path: data = "C:/samples/own.npz"'),
        ('{"arena": "64KB"}', "it is JSON; write a line for each key"),
        ("lr = [1,", "is not TOML"),
        ("arena = 'a\n", "is not TOML"),
        ("[compile]\nlr = 1", "[compile] is a table; write options at the top, without a table"),
        (f"lr = 0x{'f' * 400}", "more than 64 bits"),
        (f"lr = [1, {{a = -{'9' * 30}}}]", "more than 64 bits"),
        (f"arena = 0x{'f' * 5000}", "more than 64 bits"),
        (f"batch = {'9' * 5000}", "not TOML"),
        ("lr = 1e999", "--lr"),
    ],
)
def test_faults_of_a_config_are_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(text)
    found = run(DIGITS / "digits.onnx", "--config", tmp_path / "c.toml", "-o", tmp_path / "out")
    assert found.exit_code == 2 and said in found.err and found.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("option", "line"), [("tune", "tune = true"), ("tiles", 'tiles = "t.txt"')])
def test_options_that_were_removed_are_reported_as_such(option: str, line: str, tmp_path: Path) -> None:
    """On the command line, of a subcommand too, in a file and from Python."""
    says = "was removed in 0.2.0, since it saved 0.09 % of the instructions in float32 and 0 % in int8"
    flags = [f"--{option}"] if option == "tune" else [f"--{option}=t.txt"]
    model = DIGITS / "digits.onnx"
    (tmp_path / "c.toml").write_text(line)
    for arguments in ([model, *flags], ["contribution", model, *flags], [model, "--config", tmp_path / "c.toml"]):
        found = run(*arguments, "-o", tmp_path / "out").check_error("E0101", 2)
        assert says in found.err and option in found.err and found.err.count("\n") == 1
    with pytest.raises(CompileError, match=f"--{option} {says}"):
        options_from(model, {option: True})
    run(model, "--tunes").check_error("E0101", 2)
