/* SPDX-License-Identifier: Apache-2.0
 * Embedded GPU code: loaded module by module when first wanted, because loading may mean compiling (seconds). */
#include "device.h"
#include <stdio.h>

enum { DEFAULT_SHARED_BYTES = 48 << 10 }; /* what a kernel may use without opting in */

int attn_cuda_choose_image(const attn_cuda_image *images, const char *module, int32_t capability, int32_t toolkit,
                           bool stands_in)
{
    int best = -1;
    for (int n = 0; images[n].module; n++) {
        const attn_cuda_image *i = &images[n];
        if (strcmp(i->module, module) != 0 || i->architecture > capability) continue;
        if (!stands_in && (!i->architecture || i->toolkit > toolkit)) continue;
        if (i->architecture && !i->has_ptx && i->architecture / 10 != capability / 10) continue;
        if (best < 0 || i->architecture > images[best].architecture) best = n;
    }
    return best;
}

static attn_status no_code_because(const attn_cuda_device *d, const char *module, const char *why)
{
    char built[160] = "";
    size_t used = 0;
    for (int n = 0; attn_cuda_images[n].module && used < sizeof built; n++)
        if (strcmp(attn_cuda_images[n].module, module) == 0 && attn_cuda_images[n].architecture)
            used += (size_t)snprintf(built + used, sizeof built - used, " sm_%d", attn_cuda_images[n].architecture);
    return attn_fail(ATTN_UNSUPPORTED,
                     "GPU %d (%s) has compute capability %d.%d, and the library no code of %s for it: built for%s%s%s",
                     d->ordinal, d->name, d->capability / 10, d->capability % 10, module, used ? built : " none",
                     *why ? "; " : "", why);
}

bool attn_cuda_has_code(const attn_cuda_device *d, const char *module)
{
    return attn_cuda_choose_image(attn_cuda_images, module, d->capability, d->toolkit, d->stands_in) >= 0;
}

attn_status attn_cuda_no_code(const attn_cuda_device *d, const char *module)
{
    char why[80];
    const int newer = attn_cuda_choose_image(attn_cuda_images, module, d->capability, INT32_MAX, false);
    if (newer >= 0) {
        snprintf(why, sizeof why, "that takes a driver for CUDA %d, this one is for %d",
                 attn_cuda_images[newer].toolkit, d->toolkit);
        return no_code_because(d, module, why);
    }
    const bool named = attn_cuda_choose_image(attn_cuda_images, module, 0, 0, true) >= 0; /* of architecture 0 */
    return no_code_because(d, module, named ? "it was built without an nvcc that compiles it" : "");
}

static attn_status load_module(attn_cuda_device *d, int image, CUmodule *module)
{
    const attn_cuda_image *i = &attn_cuda_images[image];
    CUresult code = d->driver->module_load(module, i->data);
    switch (code) {
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION: /* compiling takes a driver as new as the compiler */
        attn_cuda_check(d->driver, attn_cuda_symbols.module_load, code);
        char why[300];
        snprintf(why, sizeof why, "%.299s", attn_last_error());
        return no_code_because(d, i->module, why);
    default: break;
    }
    return attn_cuda_check(d->driver, attn_cuda_symbols.module_load, code);
}

static attn_status module_of(attn_cuda_device *d, const char *name, CUmodule *module)
{
    int image = attn_cuda_choose_image(attn_cuda_images, name, d->capability, d->toolkit, d->stands_in);
    if (image < 0) return attn_cuda_no_code(d, name);
    if (image >= ATTN_CUDA_MAX_MODULES) return attn_fail(ATTN_INTERNAL, "more than %d images", ATTN_CUDA_MAX_MODULES);
    attn_status status = ATTN_OK;
    pthread_mutex_lock(&d->lock);
    if (!d->modules[image]) {
        CUmodule made = NULL;
        status = load_module(d, image, &made);
        if (status == ATTN_OK) d->modules[image] = made;
    }
    *module = d->modules[image];
    pthread_mutex_unlock(&d->lock);
    return status;
}

attn_status attn_cuda_kernel(attn_cuda_device *d, const char *module, const char *kernel, size_t shared_bytes,
                             CUfunction *function)
{
    CUmodule loaded = NULL;
    if (shared_bytes > (size_t)d->shared_bytes)
        return attn_fail(ATTN_UNSUPPORTED, "%s needs %zu bytes of shared memory, a block of GPU %d (%s) has %d", kernel,
                         shared_bytes, d->ordinal, d->name, d->shared_bytes);
    ATTN_TRY(module_of(d, module, &loaded));
    ATTN_CUDA_TRY(d->driver, module_function, function, loaded, kernel);
    if (shared_bytes <= DEFAULT_SHARED_BYTES) return ATTN_OK;
    /* All there is, which is only a bound: other threads may be about to launch the function with another size.
     * Kernels have no static shared memory that would count too. */
    return ATTN_CUDA_CALL(d->driver, function_set, *function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                          d->shared_bytes);
}

/* By buffer and size, not by pointers to parameters, because only so does the driver notice a struct of another
 * size. */
attn_status attn_cuda_run(attn_cuda_device *d, const attn_cuda_launch *l, CUstream stream)
{
    size_t bytes = l->parameter_bytes;
    void *parameters;
    memcpy(&parameters, &l->parameters, sizeof parameters); /* the driver only reads, its types do not say so */
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    return ATTN_CUDA_CALL(d->driver, launch, l->function, l->blocks, 1, 1, l->threads, 1, 1, l->shared_bytes, stream,
                          NULL, extra);
}
