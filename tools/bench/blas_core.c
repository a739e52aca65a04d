/* tools/bench/blas_core.c - see blas_core.h. */
#include "tools/bench/blas_core.h"

#include <cblas.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *const variable = "OPENBLAS_CORETYPE";
static const char *const again = "LLMQ_BLAS_CORE"; /* what this process was started again for */

enum { MAX_BYTES = 1 << 21, PIECE = 4096 };

/* What a file of the kernel says, in no more memory than it takes: there may be next to none. */
static char *read_text(const char *path, size_t *n)
{
    char *text = NULL;
    ssize_t got = 1;
    *n = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && got > 0 && *n < MAX_BYTES) {
        char *more = realloc(text, *n + PIECE + 1);
        if (!more) break;
        text = more;
        got = read(fd, text + *n, PIECE);
        if (got > 0) *n += (size_t)got;
    }
    if (fd >= 0) close(fd);
    if (text) text[*n] = 0;
    if (got == 0 && *n) return text;
    free(text);
    return NULL;
}

/* The arguments that this process was started with, from the kernel: parsing may have moved them.
 */
static char **arguments(char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += text[i] == 0;
    char **argv = calloc(count + 2, sizeof *argv);
    for (size_t i = 0, k = 0; argv && i < n; i += strlen(text + i) + 1)
        argv[k++] = text + i;
    return argv;
}

static lq_status start_again(const char *name, const char *value, lq_err *err)
{
    size_t n;
    char *text = read_text("/proc/self/cmdline", &n), **argv = text ? arguments(text, n) : NULL;
    if (argv && setenv(name, value, 1) == 0) {
        fflush(NULL);
        execv("/proc/self/exe", argv);
    }
    const int why = errno;
    free(argv);
    free(text);
    return lq_fail(err, LQ_EIO, "cannot start again with %s=%s: %s", name, value, strerror(why));
}

static lq_status take_core(const char *core, lq_err *err)
{
    if (setenv(again, core, 1) != 0) return lq_fail(err, LQ_ENOMEM, "out of memory");
    return start_again(variable, core, err);
}

static bool is_bounded(unsigned what)
{
    struct rlimit r;
    return getrlimit(what, &r) == 0 && r.rlim_cur != RLIM_INFINITY;
}

void blas_core_no_threads(void)
{
    static const char name[] = "OPENBLAS_NUM_THREADS";
    if (!getenv(name) && (is_bounded(RLIMIT_AS) || is_bounded(RLIMIT_DATA)))
        (void)start_again(name, "1", NULL); /* where it cannot be, it may still do */
}

#if defined(__x86_64__)
static bool has_common(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#else
static bool has_common(void) { return false; }
static bool has_avx512(void) { return false; }
#endif

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(name, *names) != 0)
        names++;
    return *names != NULL;
}

/* The core whose kernels this processor runs faster than those that OpenBLAS took: of a processor
 * that is newer than the library it takes Haswell's or, at worst, those of SSE3 (Prescott). NULL:
 * they are the best. */
static const char *better_core(const char *have)
{
    static const char *const avx512[] = { "SkylakeX", "Cooperlake", "SapphireRapids", NULL };
    static const char *const avx2[] = { BLAS_CORE_COMMON, "Zen", NULL };
    if (is_one_of(have, avx512)) return NULL;
    if (has_avx512()) return avx512[0];
    return has_common() && !is_one_of(have, avx2) ? BLAS_CORE_COMMON : NULL;
}

lq_status blas_core_use(bool reproducible, lq_err *err)
{
    const char *have = openblas_get_corename(), *before = getenv(again), *said = getenv(variable);
    const char *better = better_core(have);
    if (reproducible) {
        if (strcmp(have, BLAS_CORE_COMMON) == 0) return LQ_OK;
        if (!has_common())
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "--reproducible: expected a processor with AVX2 and FMA");
        if (before && strcmp(before, BLAS_CORE_COMMON) == 0)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "--reproducible: expected OpenBLAS with kernels for %s, found %s",
                           BLAS_CORE_COMMON, have);
        return take_core(BLAS_CORE_COMMON, err);
    }
    if (before || (said && *said) || !better) return LQ_OK;
    (void)take_core(better, NULL); /* where it cannot be, slower kernels do */
    return LQ_OK;
}

lq_status blas_core_is_common(lq_err *err)
{
    const char *have = openblas_get_corename();
    if (strcmp(have, BLAS_CORE_COMMON) == 0) return LQ_OK;
    return lq_fail(
        err, LQ_EUNSUPPORTED,
        "--reproducible: expected OpenBLAS's kernels for %s, found %s: start the process "
        "with %s=%s",
        BLAS_CORE_COMMON, have, variable, BLAS_CORE_COMMON);
}
