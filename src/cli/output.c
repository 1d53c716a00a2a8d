/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Temporary files of this process, for the signal handler; empty where there is none. */
enum { TEMPORARY_MAX = 16, TEMPORARY_PATH_MAX = 4096 };
static char temporaries[TEMPORARY_MAX][TEMPORARY_PATH_MAX];

static int fail(const struct cli_output *output, const char *what)
{
    return cli_fail(CLI_BAD_INPUT, "%s %s: %s", output->option, output->path, what);
}

/* Puts the name of a temporary file beside target, an absolute name, into path, and makes the file. Returns its
 * descriptor or -1. */
static int make_temporary(const char *target, char *path)
{
    static const char name[] = ".attn-XXXXXX";
    size_t directory = (size_t)(strrchr(target, '/') - target) + 1;
    if (directory + sizeof name > TEMPORARY_PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(path, target, directory);
    memcpy(path + directory, name, sizeof name);
    int descriptor = mkstemp(path);
    if (descriptor < 0) path[0] = 0;
    return descriptor;
}

/* For root access() says yes to everything; the mode bits say what the owner meant. */
static int is_protected(const char *path, const struct stat *info)
{
    return (info->st_mode & 0222) == 0 || access(path, W_OK) != 0;
}

/* The absolute name of a file that need not exist, with the links of its directory followed, so that
 * two names of one file look the same. NULL with errno set. */
static char *resolve_new(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    char *given = slash ? strndup(path, (size_t)(name - path)) : strdup(".");
    char *directory = given ? realpath(given, NULL) : NULL;
    free(given);
    if (!directory) return NULL;
    size_t size = strlen(directory) + strlen(name) + 2;
    char *resolved = malloc(size);
    if (resolved) snprintf(resolved, size, "%s%s%s", directory, directory[1] ? "/" : "", name);
    free(directory);
    return resolved;
}

static int check_directory(const struct cli_output *output)
{
    const char *slash = strrchr(output->target, '/');
    char *directory = strndup(output->target, (size_t)(slash - output->target) + 1);
    struct stat info;
    int found = directory && stat(directory, &info) == 0, protected = found && is_protected(directory, &info);
    int saved = errno;
    free(directory);
    if (!found) return fail(output, strerror(saved));
    if (protected) return fail(output, "the directory is read-only");
    char temporary[TEMPORARY_PATH_MAX];
    int descriptor = make_temporary(output->target, temporary);
    if (descriptor < 0) return fail(output, strerror(errno));
    close(descriptor);
    unlink(temporary);
    return CLI_OK;
}

int cli_output_check(struct cli_output *output)
{
    struct stat info;
    mode_t mask = umask(0);
    umask(mask);
    output->mode = 0666 & ~mask;
    size_t length = strlen(output->path);
    if (length == 0 || output->path[length - 1] == '/') return fail(output, "not the name of a file");
    if (lstat(output->path, &info) != 0) {
        if (errno != ENOENT) return fail(output, strerror(errno));
        output->target = resolve_new(output->path);
    } else {
        /* Through a link the file behind it is replaced, not the link. */
        if (stat(output->path, &info) != 0) return fail(output, strerror(errno));
        if (S_ISDIR(info.st_mode)) return fail(output, strerror(EISDIR));
        if (is_protected(output->path, &info)) return fail(output, "the file is read-only");
        if (!S_ISREG(info.st_mode)) return CLI_OK; /* /dev/null must not be replaced by a file */
        output->mode = info.st_mode & 07777;
        output->target = realpath(output->path, NULL);
    }
    if (!output->target) return fail(output, strerror(errno));
    return check_directory(output);
}

static void remove_temporaries(void)
{
    for (int i = 0; i < TEMPORARY_MAX; i++) {
        if (temporaries[i][0]) unlink(temporaries[i]);
        temporaries[i][0] = 0;
    }
}

static void on_signal(int number)
{
    int saved = errno;
    remove_temporaries();
    signal(number, SIG_DFL);
    raise(number);
    errno = saved;
}

/* No temporary file may stay when the user interrupts, and a file that grows beyond the limit of the
 * shell must fail as a full disk does. */
static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction old;
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN) continue; /* nohup */
        signal(numbers[i], on_signal);
    }
    signal(SIGXFSZ, SIG_IGN);
}

/* descriptor is closed in any case. Returns 0 or -1 with errno set. */
static int write_and_close(const struct cli_output *output, int descriptor)
{
    FILE *file = fdopen(descriptor, "wb");
    if (!file) {
        int saved = errno;
        close(descriptor);
        errno = saved;
        return -1;
    }
    errno = 0;
    int wrong = cli_npy_write(file, &output->array) != 0 || fflush(file) != 0;
    int saved = errno ? errno : EIO;
    if (fclose(file) != 0 && !wrong) {
        saved = errno;
        wrong = 1;
    }
    errno = saved;
    return wrong ? -1 : 0;
}

static int write_direct(const struct cli_output *output)
{
    FILE *file = fopen(output->path, "wb");
    if (!file) return fail(output, strerror(errno));
    errno = 0;
    int wrong = cli_npy_write(file, &output->array) != 0;
    wrong |= fclose(file) != 0;
    return wrong ? fail(output, strerror(errno ? errno : EIO)) : CLI_OK;
}

int cli_output_write(struct cli_output *outputs, int count)
{
    catch_signals();
    int status = CLI_OK;
    for (int i = 0; i < count && !status; i++) {
        if (!outputs[i].target) continue;
        int descriptor = make_temporary(outputs[i].target, temporaries[i]);
        if (descriptor >= 0) fchmod(descriptor, outputs[i].mode);
        if (descriptor < 0 || write_and_close(&outputs[i], descriptor) != 0)
            status = fail(&outputs[i], strerror(errno));
    }
    for (int i = 0; i < count && !status; i++)
        if (!outputs[i].target) status = write_direct(&outputs[i]);
    for (int i = 0; i < count && !status; i++) {
        if (!outputs[i].target) continue;
        if (rename(temporaries[i], outputs[i].target) != 0) status = fail(&outputs[i], strerror(errno));
        else temporaries[i][0] = 0;
    }
    remove_temporaries();
    return status;
}

void cli_output_free(struct cli_output *outputs, int count)
{
    for (int i = 0; i < count; i++) {
        free(outputs[i].target);
        outputs[i].target = NULL;
    }
}
