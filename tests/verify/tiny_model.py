"""A hand-written project with the generated API: y = w x + b over four inputs, squared error, SGD, w and b trained.

`bundle(kernel_extra, **replacements)` can plant a fault. `reference` trains the same model in numpy.
"""

from __future__ import annotations

import numpy as np

from tinytrain_compile.files.resources import read_text
from tinytrain_compile.ir.stages import Interface, Samples, SourceBundle, StateSlot
from tinytrain_compile.verify.compare import Rounded, State, Step

INPUTS = 4
WEIGHTS, BIAS, RATE = np.array([0.5, -0.25, 0.125, 1.0], np.float32), np.float32(0.1), np.float32(0.05)
SLOTS = (
    StateSlot("fc.weight", 16, 16, "float32"),
    StateSlot("fc.bias", 32, 4, "float32"),
    StateSlot("learning_rate", 36, 4, "float32"),
)
ARENA_BYTES = 72

HEADER = """#ifndef TINY_TRAIN_H
#define TINY_TRAIN_H
#include <stddef.h>
#include <stdint.h>
#define TINY_MEMORIES 1
#define TINY_ARENA_BYTES 72u
#define TINY_ALIGNMENT 8u
typedef enum { TINY_OK = 0, TINY_ERR = 1, TINY_ERR_NAN = 5 } tiny_status;
typedef struct tiny tiny_t;
typedef struct { float values[4]; } tiny_input_t;
typedef struct { float values[1]; } tiny_output_t;
typedef float tiny_label_t;
typedef int (*tiny_write_fn)(void *ctx, const void *data, size_t size);
typedef int (*tiny_read_fn)(void *ctx, void *data, size_t size);
tiny_status tiny_init_memories(tiny_t **m, void *const mem[TINY_MEMORIES], const size_t size[TINY_MEMORIES]);
tiny_input_t *tiny_input(tiny_t *m);
tiny_status tiny_infer(tiny_t *m, tiny_output_t *out);
tiny_status tiny_train_step(tiny_t *m, const tiny_label_t *label, float *loss);
tiny_status tiny_accumulate(tiny_t *m, const tiny_label_t *label, float *loss);
tiny_status tiny_apply(tiny_t *m);
tiny_status tiny_set_lr(tiny_t *m, float lr);
size_t tiny_state_size(void);
tiny_status tiny_save(tiny_t *m, tiny_write_fn write, void *ctx);
tiny_status tiny_load(tiny_t *m, tiny_read_fn read, void *ctx);
void tiny_k_dot(const float *w, const float *x, const float *b, float *y);
void tiny_k_update(float *w, const float *g, const float *rate, int32_t n);
extern const float tiny_w_weight[4];
extern const float tiny_w_bias[1];
#endif
"""

KERNELS = """#include "tiny_train.h"
#include "tt_runtime.h"
void tiny_k_dot(const float *w, const float *x, const float *b, float *y)
{
    float sum = b[0];
    for (int32_t i = 0; i < 4; i++) {
        sum = w[i] * x[i] + sum;
    }
    y[0] = sum;
}
void tiny_k_update(float *w, const float *g, const float *rate, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        w[i] = w[i] - rate[0] * g[i];
    }
}
"""

WEIGHTS_C = """#include "tiny_train.h"
const float tiny_w_weight[4] = {0.5f, -0.25f, 0.125f, 1.0f};
const float tiny_w_bias[1] = {0.1f};
"""

# Arena: header 0, weight 16, bias 32, rate 36, input 40, output 56, gradient sum: none, loss 60, samples 64.
TRAIN = """#include "tiny_train.h"
#include <string.h>
#include "tt_runtime.h"
struct tiny { uint32_t magic[2]; uint32_t samples; uint32_t reserved; };
#define F32(offset) ((float *)(void *)((unsigned char *)m + (offset)))

tiny_status tiny_init_memories(tiny_t **m_out, void *const mem[TINY_MEMORIES], const size_t size[TINY_MEMORIES])
{
    if (size[0] < TINY_ARENA_BYTES || (uintptr_t)mem[0] % TINY_ALIGNMENT != 0) {
        return TINY_ERR;
    }
    tiny_t *m = mem[0];
    memset(m, 0, TINY_ARENA_BYTES);
    memcpy(F32(16), tiny_w_weight, 16);
    memcpy(F32(32), tiny_w_bias, 4);
    *F32(36) = 0.05f;
    *m_out = m;
    return TINY_OK;
}
tiny_input_t *tiny_input(tiny_t *m) { return (tiny_input_t *)(void *)F32(40); }
tiny_status tiny_infer(tiny_t *m, tiny_output_t *out)
{
    tiny_k_dot(F32(16), F32(40), F32(32), F32(56));
    memcpy(out, F32(56), sizeof *out);
    return TINY_OK;
}
tiny_status tiny_train_step(tiny_t *m, const tiny_label_t *label, float *loss)
{
    tiny_k_dot(F32(16), F32(40), F32(32), F32(56));
    const float error = *F32(56) - label[0];
    *loss = error * error;
    float gradient[4];
    const float slope = 2.0f * error;
    for (int32_t i = 0; i < 4; i++) {
        gradient[i] = slope * F32(40)[i];
    }
    tiny_k_update(F32(16), gradient, F32(36), 4);
    tiny_k_update(F32(32), &slope, F32(36), 1);
    return *loss == *loss ? TINY_OK : TINY_ERR_NAN;
}
tiny_status tiny_accumulate(tiny_t *m, const tiny_label_t *label, float *loss)
{
    m->samples++;
    return tiny_train_step(m, label, loss);
}
tiny_status tiny_apply(tiny_t *m)
{
    m->samples = 0;
    return TINY_OK;
}
tiny_status tiny_set_lr(tiny_t *m, float lr) { *F32(36) = lr; return TINY_OK; }
size_t tiny_state_size(void) { return 24 + 4; }
tiny_status tiny_save(tiny_t *m, tiny_write_fn write, void *ctx)
{
    const uint32_t crc = tt_crc32(0, F32(16), 24);
    return write(ctx, F32(16), 24) == 0 && write(ctx, &crc, 4) == 0 ? TINY_OK : TINY_ERR;
}
tiny_status tiny_load(tiny_t *m, tiny_read_fn read, void *ctx)
{
    uint32_t crc;
    if (read(ctx, F32(16), 24) != 0 || read(ctx, &crc, 4) != 0) {
        return TINY_ERR;
    }
    return crc == tt_crc32(0, F32(16), 24) ? TINY_OK : TINY_ERR;
}
"""


def interface(accumulates: bool = False, arena_bytes: int = ARENA_BYTES) -> Interface:
    return Interface("tiny", INPUTS, 1, "float", 1, arena_bytes, 24, 8, accumulates, SLOTS)


def bundle(
    train: tuple[str, str] | None = None,
    kernels: tuple[str, str] | None = None,
    accumulates: bool = False,
    arena_bytes: int = ARENA_BYTES,
    compiled_bytes: int = ARENA_BYTES,
) -> SourceBundle:
    """The project; `train` and `kernels` are (old, new) replacements in tiny_train.c and tiny_kernels.c.

    arena_bytes is the planned size, compiled_bytes the one in the header: they differ where a test wants them to.
    """
    files = {
        "tiny_train.h": HEADER.replace("_BYTES 72u", f"_BYTES {compiled_bytes}u"),
        "tiny_train.c": _replaced(TRAIN, train),
        "tiny_kernels.c": _replaced(KERNELS, kernels),
        "tiny_weights.c": WEIGHTS_C,
        "tt_runtime.h": read_text("runtime_c", "tt_runtime.h"),
        "tt_config.h": read_text("runtime_c", "tt_config.h"),
    }
    return SourceBundle(files, interface(accumulates, arena_bytes))


def _replaced(text: str, change: tuple[str, str] | None) -> str:
    if change is None:
        return text
    assert change[0] in text
    return text.replace(change[0], change[1], 1)


def samples(count: int = 5) -> Samples:
    rng = np.random.default_rng(3)
    return Samples(
        rng.standard_normal((count, INPUTS)).astype(np.float32), rng.standard_normal((count, 1)).astype(np.float32)
    )


class Reference:
    """The same training in numpy (samples in turn): from any state, and as a whole run."""

    def __init__(self, data: Samples, steps: int, batch: int = 1, rate: np.float32 = RATE) -> None:
        self.x, self.y = np.asarray(data.x, np.float32), np.asarray(data.y, np.float32)
        self.batch, self.rate = batch, rate
        self.losses: list[float] = []
        self.states: list[State] = []
        state = self.initial()
        for number in range(steps):
            done = self.step(number, state)
            state = done.state
            self.losses += list(done.losses)
            self.states.append(state)
        self.output_last = self.infer(state)

    def initial(self) -> State:
        return {"fc.weight": WEIGHTS, "fc.bias": np.array([BIAS])}

    def infer(self, state: State) -> np.ndarray:
        return np.array([self.x[0] @ state["fc.weight"] + state["fc.bias"][0]])

    def step(self, number: int, state: State) -> Step:
        w, b, losses = state["fc.weight"].copy(), state["fc.bias"][0], []
        for index in range(number * self.batch, (number + 1) * self.batch):
            i = index % len(self.x)
            error = self.x[i] @ w + b - self.y[i, 0]
            losses.append(float(error * error))
            w, b = w - self.rate * (2 * error * self.x[i]), b - self.rate * 2 * error
        return Step(np.array(losses), {"fc.weight": w, "fc.bias": np.array([b])})

    def rounded(self, number: int, state: State) -> Rounded:
        """Nothing here is ill-conditioned."""
        step = self.step(number, state)
        return Rounded(step, {name: np.zeros(array.shape) for name, array in state.items()}, np.zeros(self.batch))

    def rounded_output(self, state: State) -> tuple[np.ndarray, float]:
        return self.infer(state), 0.0


reference = Reference
