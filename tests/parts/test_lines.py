"""The API of a model whose image comes row by row: every call where it may not stand, and what it leaves behind."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from testing.places import ROOT
from tests.emit.test_generated_c import NUMERIC, SANITIZED, STRICT, build, call, needs_gcc, sources
from tests.quantize import lines
from tinytrain_compile.verify.build import write_files

PROGRAM = Path(__file__).parent / "programs" / "lines.c"
CHECKS = re.findall(r'^    \{"(\w+)", \1\},$', PROGRAM.read_text(), re.MULTILINE)
CAMERA = """#include <stdint.h>
#include <stdio.h>
#define M_ROW_ELEMENTS (3u << 16)
typedef struct { uint8_t values[M_ROW_ELEMENTS]; } m_row_t;
CODE
int main(void)
{
    static m_row_t row;
    static uint16_t line[1 << 16];
    for (uint32_t pixel = 0; pixel < 1u << 16; pixel++) {
        line[pixel] = (uint16_t)pixel;
    }
    from_rgb565(&row, line);
    FILE *const file = fopen("row", "wb");
    return file == NULL || fwrite(row.values, 1, sizeof row.values, file) != sizeof row.values || fclose(file) != 0;
}
"""
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
    build(["gcc", *STRICT, *NUMERIC, "-O0", *SANITIZED, "lines.c", *files, "-o", "lines"], folder)
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


def test_pixels_of_a_camera_as_the_page_converts_them(tmp_path: Path) -> None:
    """All RGB565 pixels: the bits of a colour, repeated until they are eight."""
    page = (ROOT / "docs" / "streams.md").read_text(encoding="utf-8")
    code = page[page.index("static void from_rgb565") :].split("```")[0]
    (tmp_path / "camera.c").write_text(CAMERA.replace("CODE", code), encoding="utf-8")
    build(["gcc", *STRICT, "-O1", *SANITIZED, "camera.c", "-o", "camera"], tmp_path)
    assert call([tmp_path / "camera"], tmp_path).returncode == 0
    bits = (f"{pixel:016b}" for pixel in range(1 << 16))
    colours = (part for text in bits for part in (text[:5], text[5:11], text[11:]))
    assert (tmp_path / "row").read_bytes() == bytes(int((colour * 2)[:8], 2) for colour in colours)
