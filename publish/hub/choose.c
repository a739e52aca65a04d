/* publish/hub/choose.c - see choose.h. */
#include "publish/hub/choose.h"

#include "base/path.h"
#include "formats/hf/model_files.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <strings.h>

/* ---- names of GGUF files ---- */
/* Mixtures as llama.cpp and those who publish name them, and about how many
 * bits a weight takes (the table of llama.cpp's quantize for Llama-3.1-8B; the others between). */
static const struct {
    const char *name;
    double bits;
} quantizations[] = {
    { "TQ1_0", 1.69 },   { "IQ1_S", 2.00 },   { "TQ2_0", 2.06 },   { "IQ1_M", 2.15 },
    { "IQ2_XXS", 2.38 }, { "IQ2_XS", 2.59 },  { "IQ2_S", 2.74 },   { "IQ2_M", 2.93 },
    { "Q2_K_S", 2.97 },  { "Q2_K", 3.16 },    { "IQ3_XXS", 3.25 }, { "Q2_K_L", 3.30 },
    { "IQ3_XS", 3.50 },  { "Q3_K_S", 3.64 },  { "IQ3_S", 3.66 },   { "IQ3_M", 3.76 },
    { "Q3_K_M", 4.00 },  { "MXFP4", 4.25 },   { "Q3_K_L", 4.30 },  { "IQ4_XS", 4.46 },
    { "Q3_K_XL", 4.50 }, { "Q4_0", 4.66 },    { "Q4_K_S", 4.67 },  { "IQ4_NL", 4.68 },
    { "Q4_K_M", 4.89 },  { "Q4_K_XL", 4.95 }, { "Q4_K_L", 5.00 },  { "Q4_1", 5.12 },
    { "Q5_K_S", 5.57 },  { "Q5_0", 5.59 },    { "Q5_K_M", 5.70 },  { "Q5_K_L", 5.80 },
    { "Q5_K_XL", 5.80 }, { "Q5_1", 6.04 },    { "Q6_K", 6.56 },    { "Q6_K_L", 6.70 },
    { "Q6_K_XL", 6.90 }, { "Q8_0", 8.50 },    { "Q8_K_XL", 9.50 }, { "F16", 16.00 },
    { "BF16", 16.00 },   { "F32", 32.00 },
};
static const double preferred = 4.89; /* Q4_K_M */

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The bytes of a path up to ".gguf", and up to "-00001-of-00002.gguf" of a part. */
static size_t stem(const char *path)
{
    const size_t n = strlen(path) - strlen(".gguf");
    if (n < 15 || strncmp(path + n - 9, "-of-", 4) != 0) return n;
    for (size_t i = 0; i < 5; i++)
        if (!isdigit((unsigned char)path[n - 5 + i]) || !isdigit((unsigned char)path[n - 14 + i]))
            return n;
    return path[n - 15] == '-' ? n - 15 : n;
}

static bool is_gguf(const char *path)
{
    const char *name = base_of(path);
    return lq_has_ending(name, ".gguf") && hub_path_ok(path) &&
           strncasecmp(name, "mmproj", 6) != 0 && !strcasestr(name, "imatrix");
}

/* Is it of the mixture `tag`: "model-Q4_K_M.gguf", "model.Q4_K_M-00001-of-00002.gguf"? */
static bool is_tagged(const char *path, const char *tag)
{
    const size_t n = stem(path), len = strlen(tag);
    return n > len && strncasecmp(path + n - len, tag, len) == 0 &&
           strchr("-._/", path[n - len - 1]);
}

/* Bits of a weight, by its name; 0: not known. */
static double bits_of(const char *path)
{
    for (size_t i = 0; i < LQ_COUNT(quantizations); i++)
        if (is_tagged(path, quantizations[i].name)) return quantizations[i].bits;
    return 0;
}

static bool same_model(const char *a, const char *b)
{
    return stem(a) == stem(b) && strncmp(a, b, stem(a)) == 0;
}

/* Of those that `pick` means the best: a path; else a tag. */
static const hub_entry *find_pick(const hub_tree *t, const char *pick)
{
    const hub_entry *e = hub_tree_find(t, pick);
    for (size_t i = 0; i < t->n && !e; i++)
        if (is_gguf(t->e[i].path) && is_tagged(t->e[i].path, pick)) e = &t->e[i];
    return e;
}

static const hub_entry *nearest_gguf(const hub_tree *t)
{
    const hub_entry *best = NULL;
    double off = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (!is_gguf(t->e[i].path)) continue;
        const double bits = bits_of(t->e[i].path), d = bits > 0 ? fabs(bits - preferred) : 99;
        if (best && d >= off) continue;
        best = &t->e[i];
        off = d;
    }
    return best;
}

/* ---- a folder ---- */
/* Safetensors, at the top. */
static bool is_weights(const char *path)
{
    return lq_has_ending(path, ".safetensors") && !strchr(path, '/') && hub_path_ok(path);
}

/* "model.safetensors", "model-00001-of-00002.safetensors" */
static bool is_standard(const char *path)
{
    unsigned a, b;
    int end = 0;
    return strcmp(path, "model.safetensors") == 0 ||
           (sscanf(path, "model-%5u-of-%5u.safetensors%n", &a, &b, &end) == 2 && end && !path[end]);
}

/* Of the weights that are there those which are no copies of the others. */
static bool is_copy(const char *path, bool standard)
{
    return standard ? !is_standard(path)
                    : strncmp(path, "consolidated", 12) == 0 || strncmp(path, "adapter_", 8) == 0;
}

static bool is_small(const char *path)
{
    const model_file *kind = model_file_of(path);
    const char *slash = strchr(path, '/');
    const bool template = slash && lq_has_ending(path, ".jinja") && !strchr(slash + 1, '/') &&
                          strncmp(path, MODEL_TEMPLATES "/", strlen(MODEL_TEMPLATES "/")) == 0;
    if (model_module_path(path)) return hub_path_ok(path);
    return kind && !kind->weights && hub_path_ok(path) && (!slash || template);
}

static bool want_folder(hub_tree *t, hub_need need)
{
    bool standard = false, any = false;
    for (size_t i = 0; i < t->n; i++)
        standard = standard || (is_weights(t->e[i].path) && is_standard(t->e[i].path));
    for (size_t i = 0; i < t->n; i++) {
        hub_entry *e = &t->e[i];
        const bool weights = is_weights(e->path) && !is_copy(e->path, standard);
        any = any || weights;
        e->wanted = is_small(e->path) || (weights && need != HUB_TEXT);
    }
    return any;
}

/* ---- one file, with its other parts; of safetensors with the small files beside it ---- */
static void want_file(hub_tree *t, const hub_entry *first, char *main, size_t n)
{
    const bool gguf = is_gguf(first->path), tensors = is_weights(first->path);
    snprintf(main, n, "%s", first->path);
    for (size_t i = 0; i < t->n; i++) {
        hub_entry *e = &t->e[i];
        const bool part = gguf && is_gguf(e->path) && same_model(e->path, first->path);
        e->wanted = e == first || part || (tensors && is_small(e->path));
        if (part && strcmp(e->path, main) < 0) snprintf(main, n, "%s", e->path);
    }
}

/* ---- errors ---- */
static void list(char *out, size_t n, const hub_tree *t, bool (*is)(const char *path))
{
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < t->n && at + 80 < n; i++)
        if (is(t->e[i].path))
            at += (size_t)snprintf(out + at, n - at, "%s%.70s", at ? ", " : "", t->e[i].path);
}

static bool is_own(const char *path) { return lq_has_ending(path, ".llmq") && hub_path_ok(path); }
static bool is_pickable(const char *path) { return is_gguf(path) || is_own(path); }

static bool is_other(const char *path)
{
    static const char *const endings[] = { ".bin", ".pth",     ".pt",  ".onnx",
                                           ".h5",  ".msgpack", ".ckpt" };
    for (size_t i = 0; i < LQ_COUNT(endings); i++)
        if (lq_has_ending(path, endings[i])) return true;
    return false;
}

static lq_status no_such(const hub_tree *t, const char *pick, lq_err *err)
{
    char all[300];
    list(all, sizeof all, t, is_pickable);
    return lq_fail(err, LQ_ENOENT, "expected a file or quantization '%.100s', found %s", pick,
                   all[0] ? all : "no GGUF file");
}

static lq_status several(const hub_tree *t, lq_err *err)
{
    char all[300];
    list(all, sizeof all, t, is_own);
    return lq_fail(err, LQ_EUSAGE, "expected one model, found several: name one as :FILE of %s",
                   all);
}

static lq_status no_weights(const hub_tree *t, lq_err *err)
{
    char all[300];
    list(all, sizeof all, t, is_other);
    return lq_fail(err, LQ_EUNSUPPORTED, "expected weights as safetensors, GGUF or .llmq, found %s",
                   all[0] ? all : "none");
}

lq_status hub_choose(hub_tree *t, char *main, size_t n, const char *pick, hub_need need,
                     lq_err *err)
{
    const hub_entry *one = NULL;
    main[0] = 0;
    if (*pick) {
        one = find_pick(t, pick);
        if (!one || !hub_path_ok(one->path)) return no_such(t, pick, err);
    } else if (want_folder(t, need)) {
        return LQ_OK;
    }
    for (size_t i = 0; i < t->n && !*pick; i++) {
        if (!is_own(t->e[i].path)) continue;
        if (one) return several(t, err);
        one = &t->e[i];
    }
    if (!one) one = nearest_gguf(t);
    if (!one) return no_weights(t, err);
    want_file(t, one, main, n);
    return LQ_OK;
}
