/* SPDX-License-Identifier: Apache-2.0
 * Embedding: the images of probe_kernel.cu are there, one for each architecture that an nvcc here knows, and whole. */
#include "unit.h"

#include "cuda/device.h"

extern const attn_cuda_image test_images[];

/* The head of a fat binary, as far as it matters; its content follows. */
struct head {
    uint32_t magic;
    uint16_t version, head_bytes;
    uint64_t content_bytes;
};

static int holds(const char *data, size_t bytes, const char *text)
{
    for (size_t n = 0; n + strlen(text) <= bytes; n++)
        if (memcmp(data + n, text, strlen(text)) == 0) return 1;
    return 0;
}

static void whole(void **state)
{
    int count = 0;
    (void)state;
    for (const attn_cuda_image *i = test_images; i->module; i++, count++) {
        assert_string_equal(i->module, "probe_kernel");
        assert_int_equal((uintptr_t)i->data % 16, 0);
        if (!i->architecture) {
            assert_string_equal(i->data, "emulated probe_kernel");
            continue;
        }
        struct head head;
        memcpy(&head, i->data, sizeof head);
        assert_int_equal(head.magic, 0xba55ed50);
        assert_true(holds(i->data, head.head_bytes + head.content_bytes, ".text.probe_fill"));
        assert_int_equal(attn_cuda_choose_image(test_images, "probe_kernel", i->architecture, i->toolkit, false),
                         count);
    }
    assert_true(count > 0);
    if (!test_images[0].architecture) printf("SKIP: test_cuda_images: no nvcc, so only a placeholder is embedded\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole)};
    return cmocka_run_group_tests_name("embedded GPU code", tests, NULL, NULL);
}
