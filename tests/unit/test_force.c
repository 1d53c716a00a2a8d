/* SPDX-License-Identifier: Apache-2.0
 * The words of attn_config.force and of the environment variable ATTN_FORCE. */
#include "unit.h"

#include "internal.h"

#include <stdlib.h>

/* ---- words ----------------------------------------------------------------------------------------------------------- */

static attn_force parsed(const char *words)
{
    attn_force force;
    memset(&force, 0, sizeof force);
    if (attn_force_parse(&force, words, "test") != ATTN_OK) fail_msg("\"%s\": %s", words, attn_last_error());
    return force;
}

static void every_key(void **state)
{
    (void)state;
    attn_force f = parsed("backend=reference,isa=scalar,kernel=forward_scalar,splits=7,threads=1024,stage=never");
    assert_int_equal(f.backend, ATTN_BACKEND_REFERENCE);
    assert_string_equal(f.isa, "scalar");
    assert_string_equal(f.kernel, "forward_scalar");
    assert_int_equal(f.splits, 7);
    assert_int_equal(f.threads, 1024);
    assert_true(f.stage_never);
    assert_int_equal(parsed("backend=auto").backend, ATTN_BACKEND_AUTO);
    assert_int_equal(parsed("backend=cpu").backend, ATTN_BACKEND_CPU);
    assert_int_equal(parsed("backend=cuda").backend, ATTN_BACKEND_CUDA);
    assert_false(parsed("stage=auto").stage_never);
    assert_true(parsed("numa=never").numa_never);
    assert_false(parsed("numa=auto").numa_never);
    assert_true(parsed("bind=cores").bind && parsed("bind=cores").bind_cores);
    assert_true(parsed("bind=never").bind && !parsed("bind=never").bind_cores);
    assert_false(parsed("numa=never").bind);
}

static void nothing(void **state)
{
    (void)state;
    attn_force zero, f = parsed("");
    memset(&zero, 0, sizeof zero);
    assert_memory_equal(&f, &zero, sizeof f);
}

static void later_keys_win(void **state)
{
    (void)state;
    attn_force f = parsed("threads=4,isa=longer_name,backend=cpu,stage=never,threads=2,isa=sc,backend=auto,stage=auto");
    assert_int_equal(f.threads, 2);
    assert_string_equal(f.isa, "sc");
    assert_int_equal(f.backend, ATTN_BACKEND_AUTO);
    assert_false(f.stage_never);
}

static void other_keys_stay(void **state)
{
    (void)state;
    attn_force f = parsed("threads=4,isa=scalar");
    assert_int_equal(attn_force_parse(&f, "splits=3", "test"), ATTN_OK);
    assert_int_equal(f.threads, 4);
    assert_int_equal(f.splits, 3);
    assert_string_equal(f.isa, "scalar");
}

/* The error names where the words came from, the key, and what was wrong. */
static void refuse(const char *words, const char *named)
{
    attn_force force;
    memset(&force, 0, sizeof force);
    assert_int_equal(attn_force_parse(&force, words, "the_source"), ATTN_INVALID_ARGUMENT);
    if (!strstr(attn_last_error(), named) || strncmp(attn_last_error(), "the_source", 10) != 0)
        fail_msg("\"%s\": the error does not name %s: %s", words, named, attn_last_error());
}

static void errors(void **state)
{
    (void)state;
    refuse("thread=4", "\"thread\"");
    refuse("Threads=4", "\"Threads\"");
    refuse("=4", "\"\"");
    refuse("threads", "\"threads\"");
    refuse("isa=scalar,splits", "\"splits\"");
    refuse("threads=", "threads=");
    refuse("threads=0", "threads=0");
    refuse("threads=-1", "threads=-1");
    refuse("threads=1025", "threads=1025");
    refuse("threads=99999999999999999999", "threads=99999999999999999999");
    refuse("splits=4x", "splits=4x");
    refuse("splits=two", "splits=two");
    refuse("backend=gpu", "backend=gpu");
    refuse("backend=CPU", "backend=CPU");
    refuse("backend=", "backend=");
    refuse("stage=always", "stage=always");
    refuse("numa=always", "numa=always: expected auto or never");
    refuse("bind=yes", "bind=yes: expected never or cores");
    refuse("isa=", "isa=");
    refuse("isa=sixteen_letters_", "isa=sixteen_letters_");
    refuse("threads=4,,isa=scalar", "\"\"");
}

static void long_words(void **state)
{
    (void)state;
    char words[300] = "kernel=";
    attn_force force;
    memset(&force, 0, sizeof force);
    memset(words + 7, 'k', 63);
    assert_int_equal(attn_force_parse(&force, words, "test"), ATTN_OK);
    assert_int_equal(strlen(force.kernel), 63);
    for (int length = 64; length < 290; length++) {
        memset(words + 7, 'k', (size_t)length);
        assert_int_equal(attn_force_parse(&force, words, "test"), ATTN_INVALID_ARGUMENT);
    }
}

/* ---- option and environment ---------------------------------------------------------------------------------------------- */

/* What a context made with these would plan; "" in the environment is as good as nothing. */
static attn_status plan_of(const char *environment, const attn_config *config, attn_plan *plan)
{
    static float x[64 * 64], y[64 * 64]; /* large enough for several threads */
    attn_context *ctx;
    assert_int_equal(setenv("ATTN_FORCE", environment, 1), 0);
    attn_status status = attn_create(config, &ctx);
    unsetenv("ATTN_FORCE");
    if (status != ATTN_OK) {
        assert_null(ctx);
        return status;
    }
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = p.k = p.v = attn_bhsd(x, ATTN_F32, 1, 1, 64, 64);
    p.out = attn_bhsd(y, ATTN_F32, 1, 1, 64, 64);
    *plan = (attn_plan)ATTN_PLAN_INIT;
    status = attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, plan);
    attn_destroy(ctx);
    return status;
}

static void option_before_environment(void **state)
{
    (void)state;
    attn_config config = ATTN_CONFIG_INIT;
    attn_plan plan;
    assert_int_equal(plan_of("threads=3", &config, &plan), ATTN_OK);
    assert_int_equal(plan.threads, 3);
    config.force = "threads=5";
    assert_int_equal(plan_of("threads=3", &config, &plan), ATTN_OK);
    assert_int_equal(plan.threads, 5);
    config.force = "isa=scalar";
    assert_int_equal(plan_of("threads=3,isa=unheard_of", &config, &plan), ATTN_OK);
    assert_int_equal(plan.threads, 3); /* of the environment, the keys that the option lacks */
    assert_string_equal(plan.isa, "scalar");
    config.force = NULL;
    config.num_threads = 2;
    assert_int_equal(plan_of("", &config, &plan), ATTN_OK);
    assert_int_equal(plan.threads, 2);
}

static void forced_backend(void **state)
{
    (void)state;
    attn_config config = ATTN_CONFIG_INIT;
    attn_plan plan;
    assert_int_equal(plan_of("backend=reference", &config, &plan), ATTN_OK);
    assert_int_equal(plan.backend, ATTN_BACKEND_REFERENCE);
    config.backend = ATTN_BACKEND_CPU; /* the environment counts only where the config says AUTO */
    assert_int_equal(plan_of("backend=reference", &config, &plan), ATTN_OK);
    assert_int_equal(plan.backend, ATTN_BACKEND_CPU);
    config.force = "backend=reference";
    assert_int_equal(plan_of("", &config, &plan), ATTN_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "backend"));
}

static void bad_words(void **state)
{
    (void)state;
    attn_config config = ATTN_CONFIG_INIT;
    attn_plan plan;
    assert_int_equal(plan_of("threads=none", &config, &plan), ATTN_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "ATTN_FORCE"));
    config.force = "isa=unheard_of";
    assert_int_equal(plan_of("", &config, &plan), ATTN_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "unheard_of"));
    config.force = "kernel=unheard_of";
    assert_int_equal(plan_of("", &config, &plan), ATTN_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), "unheard_of"));
}

/* plan_of asks for forward; a kernel of backward leaves that free. */
static void forced_kernel(void **state)
{
    (void)state;
    attn_config config = ATTN_CONFIG_INIT;
    attn_plan plan;
    config.force = "kernel=backward_scalar";
    assert_int_equal(plan_of("", &config, &plan), ATTN_OK);
    config.force = "kernel=forward_scalar";
    assert_int_equal(plan_of("kernel=unheard_of", &config, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "forward_scalar");
    assert_int_equal(plan_of("backend=reference", &config, &plan), ATTN_INVALID_ARGUMENT);
    /* From the environment it concerns the contexts that have it. */
    assert_int_equal(plan_of("backend=reference,kernel=forward_scalar", NULL, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "forward_reference");
    assert_int_equal(plan_of("backend=reference,kernel=backward_reference", NULL, &plan), ATTN_OK);
    assert_string_equal(plan.kernel, "forward_reference");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key),
        cmocka_unit_test(nothing),
        cmocka_unit_test(later_keys_win),
        cmocka_unit_test(other_keys_stay),
        cmocka_unit_test(errors),
        cmocka_unit_test(long_words),
        cmocka_unit_test(option_before_environment),
        cmocka_unit_test(forced_backend),
        cmocka_unit_test(bad_words),
        cmocka_unit_test(forced_kernel),
    };
    return cmocka_run_group_tests_name("force", tests, NULL, NULL);
}
