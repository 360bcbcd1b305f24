/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/* The switches of the runtime headers, which include this one first: what the compiler must not change, and what the core
 * and the compiler have. Nothing here belongs to a model. A switch that is defined before (on the command line) keeps its
 * value; results are the same bytes with any of them but TT_HAS_FMA.
 *
 *   TT_HAS_FMA        whether TT_FMA fuses; <model>_internal.h sets it, as the model's target does (int8: never)
 *   TT_HAS_DSP        16-bit multiply-accumulate instructions in pairs: Cortex-M4, M7, M33, M55. The assembly needs all
 *                     registers but sp and pc: set it to 0 where the system keeps one (-ffixed-r9), and where Clang keeps
 *                     a frame pointer; with GCC these files are compiled without one, whatever the others are
 *   TT_HAS_THUMB2     shifted operands: all but Cortex-M0, M0+ and M1
 *   TT_HAS_MULH       the upper word of a product in one instruction, and none that shifts with a carry: RISC-V
 *   TT_HAS_EXACT_FMA  sums of integers below 2^24 as float32, of which a product and an addition are one instruction: RISC-V
 *                     with an FPU
 *   TT_HAS_THUMB1     assembly for Armv6-M: not for -Os, where GCC has too few registers left
 *   TT_HAS_MVE        Helium on integers; TT_HAS_MVE_FLOAT: on float32
 *   TT_HAS_FPU        in one instruction each, which rounds as all floats here do, to nearest (FPSCR): square roots, float32
 *                     to integers, products that are rounded and then added. It is assembly, which no flag turns into a
 *                     call of a library; a compiler that does not know GCC's assembly computes the same bits in C
 *   TT_PAGE_PORT      name of a header with a port's own page moves, for instance by DMA: see tt_page.h
 *
 * Without optimisation (-O0) assembly and intrinsics are off, except those of TT_HAS_FPU: constants in them would not be
 * known to be constants. With -Og that is so of Helium's too, but a file cannot tell -Og from -O1: set TT_HAS_MVE to 0 for
 * such a build.
 */
#ifndef TT_CONFIG_H
#define TT_CONFIG_H

/* How the code is compiled must not change what it computes. What could fuse or reorder float operations is switched off
 * here where a file can do that, and is refused where it cannot. This comes before any other header. */
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error "-ffast-math (or a part of it, or -Ofast) changes what this model computes: compile it without"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 16
#error "floats must be computed as floats: on 32-bit x86 compile with -msse2 -mfpmath=sse"
#endif
#if defined(__clang__)
#pragma float_control(precise, on) /* Clang 14 has no macro for some parts of -ffast-math */
#pragma clang fp contract(off)
#elif !defined(__GNUC__)
#pragma STDC FP_CONTRACT OFF
#elif !defined(__arm__) || defined(__ARM_FEATURE_FMA) /* where nothing can be fused, GCC 12 for Armv6-M only slows down */
#pragma GCC optimize("fp-contract=off")
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
#pragma GCC optimize("no-tree-loop-vectorize", "no-tree-slp-vectorize") /* Helium takes denormals for 0 */
#endif
#endif

#ifndef TT_HAS_FMA
#ifdef __ARM_FEATURE_FMA
#define TT_HAS_FMA 1
#else
#define TT_HAS_FMA 0
#endif
#endif

#ifndef TT_HAS_FPU
#if defined(__arm__) && defined(__ARM_FP) && (__ARM_FP & 4) && defined(__GNUC__) && !defined(__SOFTFP__)
#define TT_HAS_FPU 1
#else
#define TT_HAS_FPU 0
#endif
#endif

#ifndef TT_HAS_DSP
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP && defined(__OPTIMIZE__)
#define TT_HAS_DSP 1
#else
#define TT_HAS_DSP 0
#endif
#endif

#if TT_HAS_DSP && defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("omit-frame-pointer")
#endif

/* Armv7-M and later: shifted operands, and shifts that leave the last bit in the carry. */
#ifndef TT_HAS_THUMB2
#if defined(__thumb2__) && defined(__OPTIMIZE__)
#define TT_HAS_THUMB2 1
#else
#define TT_HAS_THUMB2 0
#endif
#endif

#ifndef TT_HAS_MULH
#if defined(__riscv_mul) && defined(__GNUC__) && defined(__OPTIMIZE__)
#define TT_HAS_MULH 1
#else
#define TT_HAS_MULH 0
#endif
#endif

#ifndef TT_HAS_THUMB1
#if defined(__GNUC__) && defined(__thumb__) && !TT_HAS_THUMB2 && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define TT_HAS_THUMB1 1
#else
#define TT_HAS_THUMB1 0
#endif
#endif

#ifndef TT_HAS_MVE
#if defined(__ARM_FEATURE_MVE) && defined(__OPTIMIZE__)
#define TT_HAS_MVE 1
#else
#define TT_HAS_MVE 0
#endif
#endif

#ifndef TT_HAS_MVE_FLOAT
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
#define TT_HAS_MVE_FLOAT 1
#else
#define TT_HAS_MVE_FLOAT 0
#endif
#endif

/* RISC-V: ordering instructions before there are registers for them takes more registers than there are. */
#if defined(__riscv) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-schedule-insns")
#endif

#ifndef TT_HAS_EXACT_FMA
#if defined(__riscv_flen) && defined(__GNUC__) && defined(__OPTIMIZE__)
#define TT_HAS_EXACT_FMA 1
#else
#define TT_HAS_EXACT_FMA 0
#endif
#endif

/* TT_SHARED: a helper that is called many times in every kernel, and has one copy because flash matters more.
 * TT_ALWAYS: one that is no function in the object, whatever the compiler thinks of it. */
#ifdef __GNUC__
#define TT_SHARED static __attribute__((noinline, unused))
#define TT_ALWAYS __attribute__((always_inline))
#define TT_LIKELY(condition) __builtin_expect((condition), 1)
#else
#define TT_SHARED static inline
#define TT_ALWAYS
#define TT_LIKELY(condition) (condition)
#endif

/* Before a short loop that only moves data: eight turns in one. */
#if defined(__GNUC__) && !defined(__clang__)
#define TT_UNROLL _Pragma("GCC unroll 8")
#else
#define TT_UNROLL
#endif

#endif
