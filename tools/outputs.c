/* tools/outputs.c */
#include "tools/outputs.h"

#include "formats/path.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the ending ---- */
/* Of a file of weights; NULL: it has another or none. */
static const char *ending_of(const char *name)
{
    static const char *const endings[] = { "llmq", "gguf", "safetensors" };
    const char *slash = strrchr(name, '/'), *dot = strrchr(slash ? slash : name, '.');
    for (size_t i = 0; dot && i < LQ_COUNT(endings); i++)
        if (strcmp(dot + 1, endings[i]) == 0) return endings[i];
    return NULL;
}

lq_status output_check_ending(const char *option, const char *out, const char *format, bool folder,
                              lq_err *err)
{
    const char *ending = ending_of(out);
    if (!ending || (!folder && strcmp(format, ending) == 0)) return LQ_OK;
    if (folder)
        return lq_fail(err, LQ_EUSAGE,
                       "%s: %s is a folder: expected the name of one, found '%s', that of a .%s "
                       "file",
                       option, format, out, ending);
    return lq_fail(err, LQ_EUSAGE,
                   "%s: expected the name of a .%s file, found '%s', that of a .%s file", option,
                   format, out, ending);
}

/* ---- the place ---- */
/* The folder that `out` is or will be in, as its true name: of those above it the nearest that is
 * there. NULL: unknown. */
static char *folder_above(const char *out)
{
    char *at = NULL, *real = NULL;
    if (lq_out_target(&at, out, NULL)) return NULL;
    size_t n = strlen(at);
    while (n > 1 && at[n - 1] == '/')
        at[--n] = 0;
    while (!real) {
        char *slash = strrchr(at, '/');
        if (slash) slash[slash == at] = 0;
        real = realpath(slash ? at : ".", NULL);
        if (!slash || strcmp(at, "/") == 0) break;
    }
    free(at);
    return real;
}

static bool is_inside(const char *out, const char *dir)
{
    char *above = folder_above(out), *real = realpath(dir, NULL);
    const size_t n = real ? strlen(real) : 0;
    const bool yes = above && real && strncmp(above, real, n) == 0 &&
                     (!above[n] || above[n] == '/' || strcmp(real, "/") == 0);
    free(above);
    free(real);
    return yes;
}

/* Would one more file in the source's folder change what the folder stands for? */
static bool one_more_changes(const char *out, const src_source *src, const char *given)
{
    char sums[4200];
    const char *ending = ending_of(out);
    if (!ending) return false;
    const bool published =
        !lq_path_join(sums, sizeof sums, given, "SHA256SUMS", NULL) && lq_exists(sums);
    return published || strcmp(src_format(src), "safetensors") != 0 ||
           strcmp(ending, "safetensors") == 0;
}

lq_status output_check_place(const char *option, const char *out, bool folder,
                             const src_source *src, const char *given, lq_err *err)
{
    if (lq_same_file(given, out) || src_reads(src, out))
        return lq_fail(err, LQ_EUSAGE, "%s: expected another place than the source, found '%s'",
                       option, out);
    if (!lq_is_dir(given) || !is_inside(out, given)) return LQ_OK;
    if (!folder && !one_more_changes(out, src, given)) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE,
                   "%s: expected a place outside the source's folder %s, which it would change, "
                   "found '%s'",
                   option, given, out);
}
