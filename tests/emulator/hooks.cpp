/* SPDX-License-Identifier: Apache-2.0
 * The functions that -fsanitize=thread, alignment and bounds call in the checked build's kernels. They are ours and
 * hidden; no sanitizer's library is involved, and one in the host program does not meet them. */
#include <string.h>
#include <sys/types.h>

#include "report.h"
#include "shadow.h"

#define HIDDEN extern "C" __attribute__((visibility("hidden")))
#define RETURN_ADDRESS __builtin_return_address(0)
#define HOOK(name, bytes, is_write) \
  HIDDEN void name(void *address);  \
  HIDDEN void name(void *address) { emulator::shadow_check(address, bytes, is_write, RETURN_ADDRESS); }
#define HOOKS(bytes)                     \
  HOOK(__tsan_read##bytes, bytes, false) \
  HOOK(__tsan_write##bytes, bytes, true)
#define HOOKS_UNALIGNED(bytes)                     \
  HOOK(__tsan_unaligned_read##bytes, bytes, false) \
  HOOK(__tsan_unaligned_write##bytes, bytes, true)

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
HOOKS_UNALIGNED(2)
HOOKS_UNALIGNED(4)
HOOKS_UNALIGNED(8)
HOOKS_UNALIGNED(16)

HIDDEN void __tsan_read_range(void *address, size_t bytes);
HIDDEN void __tsan_read_range(void *address, size_t bytes)
{
    emulator::shadow_check(address, bytes, false, RETURN_ADDRESS);
}

HIDDEN void __tsan_write_range(void *address, size_t bytes);
HIDDEN void __tsan_write_range(void *address, size_t bytes)
{
    emulator::shadow_check(address, bytes, true, RETURN_ADDRESS);
}

/* What clang makes of the memory functions since version 15. */
HIDDEN void *__tsan_memcpy(void *to, const void *from, size_t bytes);
HIDDEN void *__tsan_memcpy(void *to, const void *from, size_t bytes)
{
    emulator::shadow_check(from, bytes, false, RETURN_ADDRESS);
    emulator::shadow_check(to, bytes, true, RETURN_ADDRESS);
    return memcpy(to, from, bytes);
}

HIDDEN void *__tsan_memmove(void *to, const void *from, size_t bytes);
HIDDEN void *__tsan_memmove(void *to, const void *from, size_t bytes)
{
    emulator::shadow_check(from, bytes, false, RETURN_ADDRESS);
    emulator::shadow_check(to, bytes, true, RETURN_ADDRESS);
    return memmove(to, from, bytes);
}

HIDDEN void *__tsan_memset(void *to, int value, size_t bytes);
HIDDEN void *__tsan_memset(void *to, int value, size_t bytes)
{
    emulator::shadow_check(to, bytes, true, RETURN_ADDRESS);
    return memset(to, value, bytes);
}

HIDDEN void __tsan_init(void);
HIDDEN void __tsan_init(void) {}
HIDDEN void __tsan_func_entry(void *);
HIDDEN void __tsan_func_entry(void *) {}
HIDDEN void __tsan_func_exit(void);
HIDDEN void __tsan_func_exit(void) {}

/* Common beginning of the structs that these handlers get. */
struct UbsanPlace {
    const char *file;
    uint32_t line, column;
};

HIDDEN void __ubsan_handle_type_mismatch_v1_abort(const UbsanPlace *, const void *);
HIDDEN void __ubsan_handle_type_mismatch_v1_abort(const UbsanPlace *place, const void *address)
{
    emulator::report("misaligned address: access at %p at %s:%u", address, emulator::base_name(place->file),
                     place->line);
    emulator::worker->launch->illegal_address = true;
    emulator::worker->abandon();
}

HIDDEN void __ubsan_handle_out_of_bounds_abort(const UbsanPlace *, const void *);
HIDDEN void __ubsan_handle_out_of_bounds_abort(const UbsanPlace *place, const void *index)
{
    emulator::report("array index %zd out of bounds at %s:%u", reinterpret_cast<ssize_t>(index),
                     emulator::base_name(place->file), place->line);
    emulator::worker->abandon();
}
