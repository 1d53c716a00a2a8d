/* SPDX-License-Identifier: Apache-2.0
 * The list of GPUs and their primary contexts. */
#include "device.h"

static attn_cuda_device list[ATTN_CUDA_MAX_DEVICES];
static int32_t listed;
static attn_status list_status; /* of making the list, with its text */
static char list_error[512];

static attn_status describe(attn_cuda_device *d, const attn_cuda_driver *driver, int32_t ordinal)
{
    int major = 0, minor = 0;
    size_t bytes = 0;
    d->driver = driver;
    d->ordinal = ordinal;
    ATTN_CUDA_TRY(driver, device_get, &d->handle, ordinal);
    ATTN_CUDA_TRY(driver, device_name, d->name, sizeof d->name, d->handle);
    ATTN_CUDA_TRY(driver, device_memory, &bytes, d->handle);
    ATTN_CUDA_TRY(driver, device_attribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d->handle);
    ATTN_CUDA_TRY(driver, device_attribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d->handle);
    ATTN_CUDA_TRY(driver, device_attribute, &d->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d->handle);
    ATTN_CUDA_TRY(driver, device_attribute, &d->shared_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                  d->handle);
    /* Only estimates need it, so a driver without it is as good. */
    if (driver->device_attribute(&d->clock_khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, d->handle) != CUDA_SUCCESS)
        d->clock_khz = 0;
    d->capability = 10 * major + minor;
    d->toolkit = attn_cuda_driver_toolkit();
    d->stands_in = attn_cuda_stands_in();
    d->memory_bytes = bytes;
    d->name[sizeof d->name - 1] = '\0';
    pthread_mutex_init(&d->lock, NULL);
    return ATTN_OK;
}

static attn_status fill_list(void)
{
    const attn_cuda_driver *driver;
    int count = 0;
    ATTN_TRY(attn_cuda_load(&driver));
    ATTN_CUDA_TRY(driver, device_count, &count);
    if (count > ATTN_CUDA_MAX_DEVICES) count = ATTN_CUDA_MAX_DEVICES;
    for (int32_t n = 0; n < count; n++) ATTN_TRY(describe(&list[n], driver, n));
    listed = count;
    return count ? ATTN_OK : attn_fail(ATTN_NO_DEVICE, "the CUDA driver shows no GPU");
}

static void make_list(void)
{
    list_status = fill_list();
    if (list_status != ATTN_OK) memcpy(list_error, attn_last_error(), strlen(attn_last_error()) + 1);
}

attn_status attn_cuda_devices(attn_cuda_device **devices, int32_t *count)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const attn_cuda_driver *driver;
    pthread_once(&once, make_list);
    if (list_status != ATTN_OK) return attn_fail(ATTN_NO_DEVICE, "%s", list_error);
    ATTN_TRY(attn_cuda_load(&driver)); /* no in a child of fork */
    *devices = list;
    *count = listed;
    return ATTN_OK;
}

attn_status attn_cuda_find(int32_t ordinal, attn_cuda_device **device)
{
    int32_t count = 0;
    ATTN_TRY(attn_cuda_devices(device, &count));
    if (ordinal < 0 || ordinal >= count)
        return attn_fail(ATTN_NO_DEVICE, "GPU %d: the driver shows %d GPU%s", ordinal, count, count == 1 ? "" : "s");
    *device += ordinal;
    return ATTN_OK;
}

static attn_status retain(attn_cuda_device *d, CUcontext *context)
{
    attn_status status = ATTN_OK;
    pthread_mutex_lock(&d->lock);
    if (!d->context) {
        CUcontext made = NULL;
        status = ATTN_CUDA_CALL(d->driver, primary_retain, &made, d->handle);
        if (status == ATTN_OK) d->context = made;
    }
    *context = d->context;
    pthread_mutex_unlock(&d->lock);
    return status;
}

attn_status attn_cuda_enter(attn_cuda_device *d)
{
    CUcontext context = NULL;
    ATTN_TRY(retain(d, &context));
    return ATTN_CUDA_CALL(d->driver, context_push, context);
}

attn_status attn_cuda_leave(attn_cuda_device *d, attn_status status)
{
    CUcontext popped;
    d->driver->context_pop(&popped); /* fails only with an error that the calls between have told */
    return status;
}
