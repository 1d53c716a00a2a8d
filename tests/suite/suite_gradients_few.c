/* SPDX-License-Identifier: Apache-2.0
 * Gradients of few queries over keys of several steps: 16 (avx512) and 24 (avx2) rows of a head group are the most that kernels
 * for few rows take, one more goes by tiles. */
#include "suite_gradients.h"

#define F16 ATTN_F16
#define BF16 ATTN_BF16
#define FEW .b = 2, .hq = 4, .hkv = 2, .sq = 3, .sk = 1150, .d = 32, .seed = 11

const struct gradient_case gradient_few_cases[] = {
    {"few-1", {.hq = 1, .hkv = 1, .sq = 1, .sk = 1000, .d = 64, .seed = 1}, 0, 1, 0, 0},
    {"few-2-f16", {.q_type = F16, .hq = 4, .hkv = 2, .sk = 300, .sq = 1, .d = 128, .seed = 2}, F16, 1, 0, 0},
    {"few-7", {.hq = 7, .hkv = 1, .sq = 1, .sk = 250, .d = 48, .seed = 3}, BF16, 1, 0, 0},
    {"few-16-bf16", {.q_type = BF16, .hq = 8, .hkv = 2, .sq = 4, .sk = 500, .d = 64, .seed = 4}, BF16, 0, 0, 0},
    {"few-17", {.hq = 2, .hkv = 2, .sq = 17, .sk = 500, .d = 40, .mask = ATTN_CAUSAL, .seed = 5}, 0, 1, 0, 0},
    {"few-24", {.hq = 8, .hkv = 2, .sq = 6, .sk = 250, .d = 32, .mask = ATTN_CAUSAL, .seed = 6}, F16, 1, 0, 0},
    {"few-25", {.hq = 5, .hkv = 1, .sq = 5, .sk = 250, .d = 32, .seed = 7}, 0, 0, 0, 0},
    {"few-tails", {.b = 2, .hq = 4, .hkv = 2, .sq = 3, .sk = 530, .d = 37, .dv = 21, .seed = 8}, F16, 1, 0, 0},
    {"few-wide", {.hq = 4, .hkv = 2, .sq = 2, .sk = 130, .d = 272, .dv = 80, .seed = 9}, 0, 0, 0, 0},
    {"few-turned", {.q_type = F16, FEW, .layout = LAYOUT_BSHD}, F16, 1, DOUT_TURNED, 0},
    {"few-hostile", {FEW, .layout = LAYOUT_HOSTILE}, BF16, 1, DOUT_TURNED, 0},
    /* bands that begin and end inside steps and tiles, keys that no row sees, empty rows */
    {"few-window", {FEW, .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT, .left = 530}, 0, 1, 0, 0},
    {"few-window-both",
     {.q_type = F16,
      FEW,
      .mask = ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT | ATTN_DIAGONAL,
      .left = 70,
      .right = 3,
      .diagonal = 600},
     F16,
     0,
     0,
     0},
    {"few-top-left", {FEW, .mask = ATTN_CAUSAL | ATTN_TOP_LEFT, .sink = 1}, 0, 1, 0, 0},
    {"few-empty-rows", {FEW, .mask = ATTN_CAUSAL | ATTN_DIAGONAL, .diagonal = -2}, F16, 1, 0, 0},
    {"few-nothing-visible", {FEW, .mask = ATTN_CAUSAL | ATTN_DIAGONAL, .diagonal = -9}, 0, 1, 0, 0},
    {"few-ragged",
     {.b = 4,
      .hq = 4,
      .hkv = 2,
      .sq = 5,
      .sk = 700,
      .d = 32,
      .mask = ATTN_CAUSAL,
      .q_lengths = LENGTHS_PACKED,
      .k_lengths = LENGTHS_START,
      .with_max = 1,
      .seed = 12},
     0,
     1,
     0,
     0},
    /* scores */
    {"few-bias", {FEW, .bias = BIAS_F32, .softcap = 3}, F16, 1, 0, 0},
    {"few-bias-headless", {FEW, .bias = BIAS_HEADLESS, .mask = ATTN_CAUSAL}, 0, 1, 0, 0},
    {"few-dropout", {FEW, .dropout = 0.4f, .dropout_seed = 5, .alibi = ALIBI_HEADS}, 0, 1, 0, 0},
    /* quantised keys and values */
    {"few-q8_0", {.q_type = F16, .k_type = ATTN_Q8_0, .v_type = ATTN_Q8_0, FEW}, F16, 1, 0, 0},
    {"few-q4_0-i8", {.k_type = ATTN_Q4_0, .v_type = ATTN_I8, FEW, .scaling = SCALING_ROW}, 0, 0, 0, 0},
    {"few-f8", {.k_type = ATTN_F8_E4M3, .v_type = ATTN_F8_E5M2, FEW, .scaling = SCALING_HEAD}, 0, 1, 0, 0},
    /* one key: dS = 0, of quantised values too */
    {"few-one-key-q8_0",
     {.k_type = ATTN_Q8_0, .v_type = ATTN_Q8_0, .b = 3, .hq = 4, .hkv = 2, .sq = 2, .sk = 1, .d = 128, .seed = 16},
     0,
     0,
     0,
     0},
    {"few-one-key-i8",
     {.k_type = ATTN_I8, .v_type = ATTN_F8_E4M3, .b = 3, .hq = 4, .hkv = 2, .sq = 2, .sk = 1, .d = 80, .seed = 17},
     0,
     0,
     0,
     0},
    /* so many bytes that gradients go past the caches */
    {"few-past-cache", {.hq = 64, .hkv = 16, .sq = 1, .sk = 2050, .d = 128, .scale = 0.2f, .seed = 13}, 0, 1, 0, 0},
    {"few-past-cache-f16",
     {.q_type = F16, .hq = 64, .hkv = 32, .sq = 1, .sk = 2050, .d = 128, .seed = 14},
     F16,
     0,
     0,
     1},
    {"few-past-cache-bf16", {.hq = 64, .hkv = 32, .sq = 1, .sk = 2050, .d = 128, .seed = 15}, BF16, 0, 0, 1},
};
const size_t gradient_few_count = sizeof gradient_few_cases / sizeof *gradient_few_cases;
