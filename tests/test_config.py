"""Options that a file gives (`--config`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command import run

DIGITS = Path(__file__).parents[1] / "examples" / "digits"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learning_rate = 1", "'learning_rate' is no option"),
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
