/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* Updates of int8 training that follow the sign of gradient and velocity (--optimizer lion). The numpy twin is
 * `sign_ahead` in compiler/tinytrain_compile/ops/int8/steps.py. */
#ifndef TT_SIGN_H
#define TT_SIGN_H

#include "tt_fixed.h"

/* The sign of gradient + ahead velocity; then the velocity keeps gradient + kept velocity as in tt_momentum. rate: that of
 * tt_momentum, and behind it `ahead` N as multiplier and shift. */
TT_SHARED int32_t tt_sign_momentum(int8_t *velocity, int32_t gradient, int32_t *peak, const int32_t *rate,
    const int32_t *state, int32_t unit, int32_t noise)
{
    const int32_t ahead = tt_add(gradient, tt_scaled(*velocity, rate[6], rate[7] - 31 + state[2] - unit));
    (void)tt_momentum(velocity, gradient, peak, rate, state, unit, noise);
    return (ahead > 0 ? 1 : 0) - (ahead < 0 ? 1 : 0);
}

#endif
