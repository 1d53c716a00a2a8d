/* SPDX-License-Identifier: Apache-2.0 */
#include "settings.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>

#include "emulator.h"

namespace emulator
{

static const struct {
    const char *name;
    std::atomic<long> Settings::*value;
} integers[] = {
    {"devices", &Settings::devices},
    {"memory", &Settings::memory},
    {"threads", &Settings::threads},
    {"multiprocessors", &Settings::multiprocessors},
    {"seed", &Settings::seed},
    {"immediate", &Settings::immediate},
    {"truncate", &Settings::truncate},
    {"banks", &Settings::banks},
    {"statistics", &Settings::statistics},
};

static bool set(Settings &to, const std::string &name, const char *value)
{
    if (name == "fail") return set_fault_plan(value);
    char *end;
    if (name == "capability") { /* 7.5 */
        const long major = strtol(value, &end, 10);
        if (major < 1 || *end != '.' || end[1] < '0' || end[1] > '9' || end[2] != 0) return false;
        to.capability = 10 * major + (end[1] - '0');
        return true;
    }
    for (const auto &known : integers)
        if (name == known.name) {
            const long number = strtol(value, &end, 10);
            if (end == value || *end != 0 || number < 0) return false;
            to.*known.value = number;
            return true;
        }
    return false;
}

Settings::Settings()
{
    const std::string prefix = "EMULATOR_";
    for (char **entry = environ; *entry != nullptr; entry++) {
        const char *equals = strchr(*entry, '=');
        if (equals == nullptr || strncmp(*entry, prefix.c_str(), prefix.size()) != 0) continue;
        std::string name(*entry + prefix.size(), size_t(equals - *entry) - prefix.size());
        for (char &c : name) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
        if (!set(*this, name, equals + 1)) fprintf(stderr, "emulator: %s is not understood\n", *entry);
    }
}

Settings settings;

unsigned worker_threads()
{
    if (settings.threads > 0) return unsigned(settings.threads);
    cpu_set_t usable;
    if (sched_getaffinity(0, sizeof usable, &usable) != 0) return 1;
    return unsigned(CPU_COUNT(&usable));
}

} // namespace emulator

extern "C" __attribute__((visibility("default"))) int emulator_set(const char *name, const char *value)
{
    return emulator::set(emulator::settings, name, value) ? 0 : -1;
}
