/* SPDX-License-Identifier: Apache-2.0
 * Structs of callers that were compiled with an older or a newer header. */
#include "unit.h"

#include "internal.h"

typedef struct ours {
    uint32_t struct_size;
    int32_t a;
    int64_t b, c;
} ours;

enum { ROOM = 64, FRESH = 0x5a };

/* `size` as struct_size, then bytes 1, 2, 3 ... */
static void fill(unsigned char *theirs, uint32_t size)
{
    for (int n = 0; n < ROOM; n++) theirs[n] = (unsigned char)(n + 1);
    memcpy(theirs, &size, sizeof size);
}

static ours imported(const unsigned char *theirs)
{
    ours x;
    memset(&x, FRESH, sizeof x);
    if (attn_import(&x, sizeof x, theirs, "thing") != ATTN_OK) fail_msg("%s", attn_last_error());
    assert_int_equal(x.struct_size, sizeof x);
    return x;
}

static void refuse(const unsigned char *theirs, const char *named)
{
    ours x, untouched;
    memset(&x, FRESH, sizeof x);
    untouched = x;
    assert_int_equal(attn_import(&x, sizeof x, theirs, "thing"), ATTN_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), named));
    assert_memory_equal(&x, &untouched, sizeof x);
}

static void no_size(void **state)
{
    (void)state;
    unsigned char theirs[ROOM];
    for (uint32_t size = 0; size < sizeof size; size++) {
        fill(theirs, size);
        refuse(theirs, "thing.struct_size");
        assert_int_equal(attn_export(theirs, theirs + 32, 32, "thing"), ATTN_INVALID_ARGUMENT);
        assert_non_null(strstr(attn_last_error(), "thing.struct_size"));
        assert_int_equal(theirs[8], 9);
    }
    refuse(NULL, "thing is NULL");
}

/* An older caller: what it lacks is zero, also where the size cuts a member. */
static void shorter(void **state)
{
    (void)state;
    unsigned char theirs[ROOM];
    for (uint32_t size = 4; size <= sizeof(ours); size++) {
        fill(theirs, size);
        ours x = imported(theirs);
        const unsigned char *bytes = (const unsigned char *)&x;
        for (uint32_t n = 4; n < sizeof(ours); n++) assert_int_equal(bytes[n], n < size ? theirs[n] : 0);
    }
}

/* Nothing behind the caller's size is looked at. */
static void shorter_reads_no_further(void **state)
{
    (void)state;
    for (uint32_t size = 4; size <= sizeof(ours); size++) {
        unsigned char *theirs = test_malloc(size); /* cmocka and the sanitizers watch its ends */
        memset(theirs, 1, size);
        memcpy(theirs, &size, sizeof size);
        imported(theirs);
        test_free(theirs);
    }
}

static void longer(void **state)
{
    (void)state;
    unsigned char theirs[ROOM];
    for (uint32_t size = sizeof(ours) + 1; size <= ROOM; size++) {
        fill(theirs, size);
        memset(theirs + sizeof(ours), 0, size - sizeof(ours)); /* and beyond its size bytes that are not zero */
        ours x = imported(theirs);
        assert_memory_equal((unsigned char *)&x + 4, theirs + 4, sizeof x - 4);
        for (uint32_t n = sizeof(ours); n < size; n++) {
            theirs[n] = 1;
            refuse(theirs, "thing.struct_size");
            theirs[n] = 0;
        }
    }
}

static void export_to_any_size(void **state)
{
    (void)state;
    const ours x = {sizeof x, 0x11111111, 0x2222222222222222, 0x3333333333333333};
    for (uint32_t size = 4; size <= ROOM; size++) {
        unsigned char theirs[ROOM], rest[ROOM];
        memset(theirs, FRESH, sizeof theirs);
        memset(rest, FRESH, sizeof rest);
        memcpy(theirs, &size, sizeof size);
        assert_int_equal(attn_export(theirs, &x, sizeof x, "thing"), ATTN_OK);
        assert_memory_equal(theirs, &size, sizeof size);
        for (uint32_t n = 4; n < size; n++)
            assert_int_equal(theirs[n], n < sizeof x ? ((const unsigned char *)&x)[n] : 0);
        if (size < ROOM) assert_memory_equal(theirs + size, rest, ROOM - size);
    }
}

/* The same through the API: a device_info that ends inside `name`, and a plan with a tail. */
static void through_the_api(void **state)
{
    (void)state;
    struct {
        attn_device_info info;
        unsigned char after[32];
    } x;
    memset(&x, FRESH, sizeof x);
    x.info.struct_size = offsetof(attn_device_info, name) + 1;
    assert_int_equal(attn_device_get(0, &x.info), ATTN_OK);
    assert_int_equal(x.info.backend, ATTN_BACKEND_CPU);
    assert_int_equal(x.info.struct_size, offsetof(attn_device_info, name) + 1);
    assert_int_equal((unsigned char)x.info.name[1], FRESH);
    x.info.struct_size = sizeof x;
    assert_int_equal(attn_device_get(0, &x.info), ATTN_OK);
    for (int n = 0; n < 32; n++) assert_int_equal(x.after[n], 0);
    x.info.struct_size = 0;
    assert_int_equal(attn_device_get(0, &x.info), ATTN_INVALID_ARGUMENT);

    attn_config config = {0};
    attn_context *ctx = (attn_context *)&config;
    assert_int_equal(attn_create(&config, &ctx), ATTN_INVALID_ARGUMENT);
    assert_null(ctx);
    assert_non_null(strstr(attn_last_error(), "config.struct_size"));
    config.struct_size = offsetof(attn_config, flags);
    config.flags = 0xffffffff; /* beyond the struct, so it does not count */
    assert_int_equal(attn_create(&config, &ctx), ATTN_OK);
    attn_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_size),
        cmocka_unit_test(shorter),
        cmocka_unit_test(shorter_reads_no_further),
        cmocka_unit_test(longer),
        cmocka_unit_test(export_to_any_size),
        cmocka_unit_test(through_the_api),
    };
    return cmocka_run_group_tests_name("import", tests, NULL, NULL);
}
