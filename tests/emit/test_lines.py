"""The API of a model whose image comes row by row: every call where it may not stand, and what it leaves behind."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.emit.test_generated_c import NUMERIC, SANITIZED, STRICT, build, call, needs_gcc, sources
from tests.quantize import lines
from tinytrain_compile.verify.build import write_files

PROGRAM = Path(__file__).parent / "programs" / "lines.c"
CHECKS = re.findall(r'^    \{"(\w+)", \1\},$', PROGRAM.read_text(), re.MULTILINE)
pytestmark = needs_gcc


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """programs/lines.c with two models in one image, under AddressSanitizer and UBSan."""
    folder = tmp_path_factory.mktemp("lines")
    shutil.copy(PROGRAM, folder)
    files: list[str] = []
    for name, batch in (("net", 1), ("sums", 2)):
        train = lines.train_of(4, batch)
        bundle = lines.project(train, lines.longest(train, 4), name=name).bundle
        write_files(folder, bundle.files)
        files += sources(bundle)
    build(["gcc", *STRICT, *NUMERIC, "-Og", *SANITIZED, "lines.c", *files, "-o", "lines"], folder)
    return folder / "lines"


@pytest.mark.parametrize("name", CHECKS)
def test_api(name: str, program: Path) -> None:
    done = call([program, name], program.parent)
    assert done.returncode == 0, done.stdout + done.stderr[:3000]
    assert done.stderr == ""


def test_there_is_no_image_in_the_api() -> None:
    """No function takes the image as a whole, and no buffer of the arena is as large."""
    train = lines.train_of(4)
    made = lines.project(train, lines.longest(train, 4))
    header = made.bundle.files["net_train.h"]
    assert not re.search(r"\bnet_(input|infer|train_step|accumulate)\(|net_input_t", header)
    image = train.graph.inputs[0]
    assert image.name not in made.plan.offsets
    assert made.bundle.interface.input_rows == image.shape[1]
