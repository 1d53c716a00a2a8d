/* SPDX-License-Identifier: Apache-2.0
 * test_cuda_none TEXT...: where no GPU can be used, as the environment has it, the reason has these texts in it, and
 * everything else works as if CUDA did not exist. */
#include "unit.h"

#include "attn/attn.h"

static char **texts;

static void reason_is_told(void **state)
{
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx;
    (void)state;
    config.backend = ATTN_BACKEND_CUDA;
    for (int again = 0; again < 2; again++) {
        assert_int_equal(attn_create(&config, &ctx), ATTN_NO_DEVICE);
        assert_null(ctx);
        for (char **text = texts; *text; text++)
            if (!strstr(attn_last_error(), *text)) fail_msg("\"%s\" lacks \"%s\"", attn_last_error(), *text);
    }
}

static void one_device(void **state)
{
    int32_t count = 0;
    attn_device_info info = {.struct_size = sizeof info};
    (void)state;
    assert_int_equal(attn_device_count(&count), ATTN_OK);
    assert_int_equal(count, 1);
    assert_int_equal(attn_device_get(0, &info), ATTN_OK);
    assert_int_equal(attn_device_get(1, &info), ATTN_INVALID_ARGUMENT);
}

static void automatic_works(void **state)
{
    float q[64] = {0}, k[64] = {0}, v[64], out[64] = {0};
    attn_context *ctx;
    void *memory;
    (void)state;
    for (int n = 0; n < 64; n++) v[n] = (float)n;
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(q, ATTN_F32, 1, 1, 1, 64);
    p.k = attn_bhsd(k, ATTN_F32, 1, 1, 1, 64);
    p.v = attn_bhsd(v, ATTN_F32, 1, 1, 1, 64);
    p.out = attn_bhsd(out, ATTN_F32, 1, 1, 1, 64);
    assert_int_equal(attn_create(NULL, &ctx), ATTN_OK);
    assert_int_equal(attn_forward(ctx, &p, NULL), ATTN_OK);
    assert_memory_equal(out, v, sizeof v);
    assert_int_equal(attn_malloc(ctx, 1, 64, &memory), ATTN_NO_DEVICE);
    assert_int_equal(attn_malloc(ctx, 0, sizeof v, &memory), ATTN_OK);
    assert_int_equal(attn_upload(ctx, memory, q, sizeof q, NULL), ATTN_OK);
    assert_int_equal(attn_download(ctx, out, memory, sizeof q, NULL), ATTN_OK);
    assert_memory_equal(out, q, sizeof q);
    assert_int_equal(attn_sync(ctx, NULL), ATTN_OK);
    attn_free(ctx, memory);
    attn_exec exec = ATTN_EXEC_INIT;
    exec.device = 2;
    assert_int_equal(attn_forward(ctx, &p, &exec), ATTN_NO_DEVICE);
    attn_destroy(ctx);
}

int main(int argc, char **argv)
{
    (void)argc;
    texts = argv + 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reason_is_told),
        cmocka_unit_test(one_device),
        cmocka_unit_test(automatic_works),
    };
    return cmocka_run_group_tests_name("no GPU", tests, NULL, NULL);
}
