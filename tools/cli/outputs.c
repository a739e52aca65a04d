/* tools/cli/outputs.c */
#include "tools/cli/outputs.h"

#include "base/file.h"
#include "base/path.h"
#include "publish/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

/* ---- the ending ---- */
/* Of a file of weights; NULL: it has another or none. */
static const char *ending_of(const char *name)
{
    static const char *const endings[] = { "llmq", "gguf", "safetensors" };
    const char *slash = strrchr(name, '/'), *dot = strrchr(slash ? slash : name, '.');
    for (size_t i = 0; dot && i < LQ_COUNT(endings); i++)
        if (strcasecmp(dot + 1, endings[i]) == 0) return endings[i];
    return NULL;
}

/* Somebody's notes.txt, or fake.llmq: a file that is no model. */
static bool is_foreign(const char *out)
{
    lq_map m;
    if (lq_map_open(&m, out, NULL)) return false;
    const bool yes = m.size && (m.size < 9 ||
                                (memcmp(m.data, "LLMQ", 4) != 0 && memcmp(m.data, "GGUF", 4) != 0 &&
                                 m.data[8] != '{')); /* a header of safetensors */
    lq_map_close(&m);
    return yes;
}

lq_status output_check_ending(const char *option, const char *out, const char *format, bool folder,
                              lq_err *err)
{
    const char *ending = ending_of(out);
    if (!folder && is_foreign(out))
        return lq_fail(err, LQ_EUSAGE,
                       "%s: expected a new name or that of a model's file, found '%s', which is "
                       "there and is none",
                       option, out);
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

lq_status output_check_kind(const char *option, const char *out, const char *text, const char *what,
                            lq_err *err)
{
    enum { BEGIN = 256 };
    lq_map m;
    if (lq_map_open(&m, out, NULL)) return LQ_OK; /* new, or writing it will say why not */
    const bool ours =
        !m.size || memmem(m.data, m.size < BEGIN ? m.size : BEGIN, text, strlen(text));
    lq_map_close(&m);
    if (ours) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE,
                   "%s: expected a new name or that of %s, found '%s', which is there and is none",
                   option, what, out);
}

/* ---- the place ---- */
typedef struct {
    const char *given; /* the model, as the command line names it */
    char dir[4200];    /* the folder that it is or is in */
    bool whole;        /* the folder is read, not one file alone */
    bool published;
} source;

static void find_source(source *s, const src_source *src, const char *given)
{
    char sums[4200];
    const char *slash = strrchr(given, '/');
    const bool is_dir = lq_is_dir(given);
    *s = (source){ .given = given };
    if (is_dir)
        snprintf(s->dir, sizeof s->dir, "%s", given);
    else if (slash)
        snprintf(s->dir, sizeof s->dir, "%.*s", slash > given ? (int)(slash - given) : 1, given);
    else
        snprintf(s->dir, sizeof s->dir, ".");
    s->whole = is_dir || (src ? strcmp(src_format(src), "safetensors") == 0
                              : lq_has_ending(given, ".safetensors"));
    s->published = !lq_path_join(sums, sizeof sums, s->dir, "SHA256SUMS", NULL) && lq_exists(sums);
}

/* Is `path` directly in the folder, or in the one of a model's folder that is in it? */
static bool is_beside(const source *s, const char *path)
{
    char dir[4200], more[4200];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash + 1 - path) : 1, slash ? path : ".");
    return lq_same_file(dir, s->dir) ||
           (!lq_path_join(more, sizeof more, s->dir, "additional_chat_templates", NULL) &&
            lq_same_file(dir, more));
}

/* Does the index of shards name it? */
static bool is_shard(const source *s, const char *name)
{
    char path[4200], quoted[300];
    lq_map m;
    const int n = snprintf(quoted, sizeof quoted, "\"%s\"", name);
    if (n < 0 || (size_t)n >= sizeof quoted ||
        lq_path_join(path, sizeof path, s->dir, "model.safetensors.index.json", NULL) ||
        lq_map_open(&m, path, NULL))
        return false;
    const bool yes = memmem(m.data, m.size, quoted, (size_t)n) != NULL;
    lq_map_close(&m);
    return yes;
}

/* Would weights of this name change what the source stands for? A .llmq or GGUF file beside
 * safetensors does not: the folder still means those. */
static bool weights_change(const source *s, const src_source *src, const char *name)
{
    if (s->published || is_shard(s, name)) return true;
    return lq_is_dir(s->given) && (!src || strcmp(src_format(src), "safetensors") != 0 ||
                                   lq_has_ending(name, ".safetensors"));
}

/* Is a file of this name part of the source, or would it be? One file that is read alone has no
 * part but those that are there already. */
static bool is_part(const source *s, const src_source *src, const char *target)
{
    const char *slash = strrchr(target, '/'), *name = slash ? slash + 1 : target;
    const model_file *kind = is_beside(s, target) ? model_file_of(name) : NULL;
    if (!kind) return false;
    if (kind->weights) return weights_change(s, src, name);
    return s->whole || s->published || lq_exists(target);
}

/* Is it, or does it hold, what is read? */
static bool holds_source(const source *s, const char *folder)
{
    return lq_same_file(s->dir, folder) || lq_is_inside(s->dir, folder) ||
           lq_is_inside(s->given, folder);
}

static lq_status check_place(const source *s, const char *target, bool folder,
                             const src_source *src, lq_err *err)
{
    if (!folder && lq_is_dir(target))
        return lq_fail(err, LQ_EUSAGE, "expected a file's name, found a folder's, '%s'", target);
    if (folder && lq_exists(target) && !lq_is_dir(target))
        return lq_fail(err, LQ_EUSAGE, "expected a folder's name, found a file, '%s'", target);
    if (lq_same_file(s->given, target) || (src && src_reads(src, target)))
        return lq_fail(err, LQ_EUSAGE, "expected another place than the source, found '%s'",
                       target);
    char grows[4200]; /* what a killed run left there goes */
    snprintf(grows, sizeof grows, "%s.tmp", target);
    if (folder && (holds_source(s, target) || holds_source(s, grows)))
        return lq_fail(err, LQ_EUSAGE,
                       "expected another folder than the one that the source is in, which would "
                       "be replaced, found '%s'",
                       target);
    if (folder ? lq_is_dir(s->given) && lq_is_inside(target, s->given) : is_part(s, src, target))
        return lq_fail(err, LQ_EUSAGE,
                       "expected a place outside the source's folder %s, which it would change, "
                       "found '%s'",
                       s->dir, target);
    return LQ_OK;
}

lq_status output_check_place(const char *option, const char *out, bool folder,
                             const src_source *src, const char *given, lq_err *err)
{
    char *target;
    source from;
    find_source(&from, src, given);
    lq_status s = lq_out_target(&target, out, err);
    if (!s) s = check_place(&from, target, folder, src, err);
    free(target);
    return s ? lq_wrap(err, s, "%s", option) : LQ_OK;
}

lq_status output_check_own(const char *option, const char *out, const char *const *read, int n,
                           lq_err *err)
{
    for (int i = 0; i < n && out; i++)
        if (lq_same_file(read[i], out))
            return lq_fail(err, LQ_EUSAGE, "%s: expected a file of its own, found '%s'", option,
                           out);
    return LQ_OK;
}
