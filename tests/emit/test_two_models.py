"""Two models with all parts of the loop in one C++17 program: no name twice, each saves into a store of its own."""

from __future__ import annotations

import re
from pathlib import Path

import tinytrain_compile as tt
from testing.places import ROOT
from tests.emit.test_generated_c import build, needs_gcc
from tests.emit.test_strict import LOOP, WARNINGS, c_files

pytestmark = needs_gcc
HEAD = r"""
#include <cstring>
namespace {
enum { MOST = 65536 };
unsigned char media[2][MOST];
int read_from(void *ctx, uint32_t offset, void *data, size_t size)
{
    std::memcpy(data, static_cast<unsigned char *>(ctx) + offset, size);
    return 0;
}
int write_to(void *ctx, uint32_t offset, const void *data, size_t size)
{
    std::memcpy(static_cast<unsigned char *>(ctx) + offset, data, size);
    return 0;
}
"""
EACH = r"""
alignas(M_ALIGNMENT) unsigned char m_arena[M_ARENA_BYTES];
m_status m_run(unsigned char *where, bool train)
{
    constexpr uint32_t slot = M_STORE_SLOT_BYTES(1u);
    static_assert(2u * slot <= MOST, "room for two slots");
    const m_medium_t medium = {read_from, write_to, nullptr, where, 2u, slot, 1u, 1u, 0xff};
    m_slot_store_t store;
    m_t *model = nullptr;
    m_label_t label{};
    float loss = 0.0f;
    m_status status = m_init(&model, m_arena, sizeof m_arena);
    if (status == M_OK) {
        status = m_store_open(&store, &medium);
    }
    if (status == M_OK && train) {
        std::memset(m_input(model), 0, sizeof(m_input_t));
        status = m_train_step(model, &label, &loss);
    }
    if (status == M_OK) {
        status = train ? m_store_save(&store, model) : m_store_load(&store, model);
    }
    return status;
}
"""
MAIN = r"""
}
int main()
{
    if (one_run(media[0], true) != ONE_OK || two_run(media[1], true) != TWO_OK) {
        return 1;
    }
    if (one_run(media[0], false) != ONE_OK || two_run(media[1], false) != TWO_OK) {
        return 2;
    }
    return one_run(media[1], false) == ONE_ERR_FORMAT && two_run(media[0], false) == TWO_ERR_FORMAT ? 0 : 3;
}
"""


def test_two_models_with_stores_in_one_program(tmp_path: Path) -> None:
    made = {"one": ("digits", {"update": "all"}), "two": ("linear", {"loss": "mse"})}
    headers, objects = list[str](), list[str]()
    for name, (model, options) in made.items():
        file, folder = ROOT / "examples" / model / f"{model}.onnx", tmp_path / name
        tt.compile(file, verify="none", name=name, runtime=LOOP, **options).save(folder)
        build(["gcc", "-std=c11", "-c", *c_files(folder)], folder)
        objects += [str(path) for path in sorted(folder.glob("*.o"))]
        headers += sorted(path.name for path in folder.glob(f"{name}_*.h") if "internal" not in path.name)
    assert {"one_store.h", "two_store.h", "one_monitor.h", "two_monitor.h"} < set(headers)
    each = [re.sub(r"\bM_", f"{name.upper()}_", re.sub(r"\bm_", f"{name}_", EACH)) for name in made]
    text = [*(f'#include "{header}"\n' for header in headers), HEAD, *each, MAIN]
    (tmp_path / "both.cpp").write_text("".join(text))
    build(["g++", "-std=c++17", *WARNINGS, "-Ione", "-Itwo", "both.cpp", *objects, "-lm", "-o", "both"], tmp_path)
    build([tmp_path / "both"], tmp_path)
