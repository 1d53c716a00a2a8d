/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <mutex>

#include "block.h"
#include "emulator.h"

namespace emulator
{

static std::mutex mutex;
static std::string kept;
enum { KEPT_BYTES = 64 << 10 }; /* who never asks shall not fill the memory */

const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != nullptr ? slash + 1 : path;
}

static std::string prefix()
{
    std::string text = "emulator: ";
    if (worker == nullptr || worker->launch == nullptr) return text;
    text += std::string(worker->launch->kernel->name) + ", block " + std::to_string(worker->block_index);
    if (self != nullptr)
        text += ", thread " + std::to_string(self->index) + " (warp " + std::to_string(self->index / LANES) + " lane " +
                std::to_string(self->lane) + ")";
    return text + ": ";
}

void report(const char *format, ...)
{
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (worker != nullptr && worker->launch != nullptr) worker->launch->failed = true;
    const std::string text = prefix() + message + "\n";
    const std::lock_guard<std::mutex> lock(mutex);
    fputs(text.c_str(), stderr);
    if (kept.size() < KEPT_BYTES) kept += text;
}

std::string source_line(const void *return_address)
{
    Dl_info info;
    if (dladdr(return_address, &info) == 0) return "?";
    const size_t offset =
        size_t(static_cast<const char *>(return_address) - static_cast<const char *>(info.dli_fbase)) - 1;
    char command[4400], line[512];
    snprintf(command, sizeof command, "addr2line -i -s -e '%s' 0x%zx 2>/dev/null", info.dli_fname, offset);
    std::string found = "?";
    FILE *pipe = popen(command, "r");
    if (pipe == nullptr) return found;
    while (fgets(line, sizeof line, pipe) != nullptr) { /* innermost first, then where that is inlined */
        line[strcspn(line, " \n")] = 0;
        if (found == "?" && strncmp(line, "device_emulated.h:", 18) != 0) found = line;
    }
    pclose(pipe);
    return found;
}

} // namespace emulator

extern "C" __attribute__((visibility("default"))) size_t emulator_reports(char *text, size_t bytes)
{
    const std::lock_guard<std::mutex> lock(emulator::mutex);
    const size_t length = emulator::kept.size();
    if (bytes > 0) snprintf(text, bytes, "%s", emulator::kept.c_str());
    emulator::kept.clear();
    return length;
}
