/* SPDX-License-Identifier: Apache-2.0
 * The attn command: finds the subcommand, prints help and version, reports errors. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct cli_command *const commands[] = {&cli_cmd_info, &cli_cmd_run, &cli_cmd_check, &cli_cmd_bench};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

int cli_fail(int status, const char *format, ...)
{
    char text[4096];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length < 0) strcpy(text, "an error that could not be printed");
    /* File names and library texts may hold anything; scripts rely on one line. */
    for (char *c = text; *c; c++)
        if (iscntrl((unsigned char)*c)) *c = *c == '\n' ? ' ' : '?';
    fflush(stdout);
    fprintf(stderr, "attn: %s\n", text);
    return status;
}

int cli_exit_status(attn_status status)
{
    switch (status) {
    case ATTN_OK: return CLI_OK;
    case ATTN_INVALID_ARGUMENT: return CLI_BAD_INPUT;
    case ATTN_UNSUPPORTED:
    case ATTN_NO_DEVICE:
    case ATTN_OUT_OF_MEMORY: return CLI_CANNOT;
    case ATTN_WORKSPACE_TOO_SMALL:
    case ATTN_DEVICE_ERROR:
    case ATTN_INTERNAL: break;
    }
    return CLI_DEVICE_ERROR;
}

int cli_fail_library(attn_status status, const char *what)
{
    const char *text = attn_last_error();
    return cli_fail(cli_exit_status(status), "%s%s%s%s%s", what ? what : "", what ? ": " : "",
                    attn_status_string(status), *text ? ": " : "", text);
}

int cli_finish(int status)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    return cli_fail(CLI_BAD_INPUT, "cannot write to standard output: %s", strerror(errno ? errno : EIO));
}

const char *cli_backend_name(int32_t backend)
{
    switch (backend) {
    case ATTN_BACKEND_AUTO: return "auto";
    case ATTN_BACKEND_CPU: return "cpu";
    case ATTN_BACKEND_CUDA: return "cuda";
    case ATTN_BACKEND_REFERENCE: return "reference";
    default: return "?";
    }
}

static const struct cli_command *find_command(const char *name)
{
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

static int print_version(void)
{
    uint32_t version = attn_version();
    printf("attn %u.%u.%u\n", version >> 16, version >> 8 & 255u, version & 255u);
    return cli_finish(CLI_OK);
}

static int print_help(void)
{
    puts("Usage: attn COMMAND [OPTIONS]\n"
         "\n"
         "Exact attention on the CPU or an NVIDIA GPU.\n"
         "\n"
         "Commands:");
    for (int i = 0; i < COMMAND_COUNT; i++) printf("  %-8s %s\n", commands[i]->name, commands[i]->summary);
    puts("  help     Show the page of a command: attn help COMMAND\n"
         "\n"
         "Options:\n"
         "  --help      Show this page\n"
         "  --version   Show the version\n"
         "\n"
         "Exit status: 0 good, 1 wrong result (a check failed), 2 bad usage or input,\n"
         "3 this machine cannot (unsupported, no such device, no memory), 4 device error.\n"
         "Every error is one line on standard error.\n"
         "\n"
         "Example:\n"
         "  attn run Q.npy K.npy V.npy --causal -o OUT.npy");
    return cli_finish(CLI_OK);
}

static int print_page(const struct cli_command *command)
{
    fputs(command->help, stdout);
    if (command->more) fputs(command->more, stdout);
    return cli_finish(CLI_OK);
}

static int run_help(int argc, char **argv)
{
    if (argc == 0) return print_help();
    if (argc > 1) return cli_fail(CLI_BAD_INPUT, "help takes one command; got '%s' too", argv[1]);
    const struct cli_command *command = find_command(argv[0]);
    if (!command) return cli_fail(CLI_BAD_INPUT, "no command '%s'; see 'attn --help'", argv[0]);
    return print_page(command);
}

static int is_help(const char *word) { return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0; }

int main(int argc, char **argv)
{
    if (argc < 2) return cli_fail(CLI_BAD_INPUT, "no command given; see 'attn --help'");
    const char *name = argv[1];
    if (is_help(name)) return print_help();
    if (strcmp(name, "--version") == 0) return print_version();
    if (strcmp(name, "help") == 0) return run_help(argc - 2, argv + 2);
    const struct cli_command *command = find_command(name);
    if (!command)
        return cli_fail(CLI_BAD_INPUT, "no %s '%s'; see 'attn --help'", name[0] == '-' ? "option" : "command", name);
    /* Help wins over every other word, also a wrong one, but not over text behind "--". */
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (is_help(argv[i])) return print_page(command);
    return cli_finish(command->run(argc - 2, argv + 2));
}
