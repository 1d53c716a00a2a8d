/* SPDX-License-Identifier: Apache-2.0
 * `attn check`: the test suite on this machine. */
#include "cli.h"
#include "options.h"

#include "suite/suite.h"

#include <string.h>

static const char help[] = "Usage: attn check [OPTIONS]\n"
                           "\n"
                           "Runs the test suite on a device of this machine: every result is compared with\n"
                           "the float64 reference, and those of a GPU with the CPU too. Prints a line for\n"
                           "each case that fails and a summary. The first thing to run on a new machine.\n"
                           "\n"
                           "It ends with a block between two lines of dashes, to be pasted into a report:\n"
                           "version and build, each device with its driver, the kernels that were used,\n"
                           "counts, the first failures, and times of a few shapes. A shape takes a third of\n"
                           "a second or is left out, with the reason. A report of a GPU that nobody has\n"
                           "tried yet is welcome also when all is well.\n"
                           "\n"
                           "  --device D    cpu, cuda, cuda:N or reference; auto (default) is every device\n"
                           "                of this machine; cpu/LEVEL is one instruction set level,\n"
                           "                cuda/FAMILY or cuda:N/FAMILY one family of kernels\n"
                           "  --quick       A selection that takes a minute or two (default)\n"
                           "  --full        Every case\n"
                           "  --filter S    Only cases whose name contains S\n"
                           "  --timings     Time the shapes of the block also with --filter\n"
                           "  --fail-fast   Stop after the first case that fails\n"
                           "  --verbose     Print every case\n"
                           "  --json        Print JSON, with what the block has\n"
                           "  --help        Show this page\n"
                           "\n"
                           "Exit status: 0 all cases passed, 1 a case failed, 3 this machine cannot.\n"
                           "\n"
                           "Example:\n"
                           "  attn check --device cuda --full\n";

/* The word before a level is that of every command; whether the level is there the suite finds out. */
static int check_device(const char *device)
{
    char word[16];
    int32_t backend, ordinal;
    size_t length = strcspn(device, "/");
    if (!device[length] || !device[length + 1] || length >= sizeof word)
        return cli_parse_device("--device", device, &backend, &ordinal);
    memcpy(word, device, length);
    word[length] = '\0';
    return cli_parse_device("--device", word, &backend, &ordinal);
}

static int cmd_check(int argc, char **argv)
{
    const char *device = "auto", *filter = NULL;
    int quick = 0, full = 0, json = 0, verbose = 0, fail_fast = 0, timings = 0, words;
    const struct cli_option table[] = {
        {.name = "--device", .kind = CLI_TEXT, .target = &device},
        {.name = "--filter", .kind = CLI_TEXT, .target = &filter},
        {.name = "--quick", .kind = CLI_FLAG, .target = &quick},
        {.name = "--full", .kind = CLI_FLAG, .target = &full},
        {.name = "--timings", .kind = CLI_FLAG, .target = &timings},
        {.name = "--fail-fast", .kind = CLI_FLAG, .target = &fail_fast},
        {.name = "--json", .kind = CLI_FLAG, .target = &json},
        {.name = "--verbose", .kind = CLI_FLAG, .target = &verbose},
    };
    int status = cli_parse_options(argc, argv, table, sizeof table / sizeof table[0], &words);
    if (status) return status;
    if (words) return cli_fail(CLI_BAD_INPUT, "check takes no file; got '%s'", argv[0]);
    if (quick && full) return cli_fail(CLI_BAD_INPUT, "--quick and --full exclude each other");
    status = check_device(device);
    if (status) return status;
    struct attn_suite_options options = {.device = strcmp(device, "auto") == 0 ? NULL : device,
                                         .full = full,
                                         .filter = filter,
                                         .json = json,
                                         .fail_fast = fail_fast,
                                         .timings = timings,
                                         .verbose = verbose};
    return attn_suite_main(&options);
}

const struct cli_command cli_cmd_check = {"check", "Test this machine: run the suite", help, cmd_check, NULL};
