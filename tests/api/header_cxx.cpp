/* SPDX-License-Identifier: Apache-2.0
 * As header_c.c, in C++17. */
#include <attn/attn.h>

static int same(uint32_t struct_size, size_t size) { return struct_size == size; }

int main(void)
{
    attn_config config = ATTN_CONFIG_INIT;
    attn_problem problem = ATTN_PROBLEM_INIT;
    attn_grads grads = ATTN_GRADS_INIT;
    attn_exec exec = ATTN_EXEC_INIT;
    attn_plan plan = ATTN_PLAN_INIT;
    attn_rope rope = ATTN_ROPE_INIT;
    attn_append append = ATTN_APPEND_INIT;
    int sizes = same(config.struct_size, sizeof config) && same(problem.struct_size, sizeof problem) &&
                same(grads.struct_size, sizeof grads) && same(exec.struct_size, sizeof exec) &&
                same(plan.struct_size, sizeof plan) && same(rope.struct_size, sizeof rope) &&
                same(append.struct_size, sizeof append);
    uint32_t version = (uint32_t)ATTN_VERSION_MAJOR << 16 | ATTN_VERSION_MINOR << 8 | ATTN_VERSION_PATCH;
    return !(sizes && problem.out.data == NULL && attn_version() == version);
}
