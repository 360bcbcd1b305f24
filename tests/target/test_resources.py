"""Data folders are found beside the package (checkout) and inside it (wheel)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinytrain_compile.files import resources


def test_checkout_has_both_folders() -> None:
    assert (resources.data_dir("targets") / "cortex-m7.toml").is_file()
    assert "tt_expf" in resources.read_text("runtime_c", "tt_runtime.h")
    assert "PORT_MEASURED" in resources.read_text("runtime_c", "ports/port.h")


def test_a_wheel_carries_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_data" / "targets").mkdir(parents=True)
    (tmp_path / "_data" / "targets" / "x.toml").write_text("name = 'x'\n")
    monkeypatch.setattr(resources, "ROOTS", (tmp_path / "_data", tmp_path / "nowhere"))
    assert resources.read_text("targets", "x.toml") == "name = 'x'\n"
    with pytest.raises(FileNotFoundError, match="'runtime_c' is missing"):
        resources.data_dir("runtime_c")
