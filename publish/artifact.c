/* publish/artifact.c */
#include "publish/artifact.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/path.h"
#include "base/version.h"
#include "formats/hf/front_matter.h"
#include "formats/source/history.h"
#include "formats/source/totals.h"
#include "publish/card.h"
#include "publish/handover.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

typedef struct {
    pub_files *fs;
    const src_source *src;
    const char *path;
    const artifact_opts *o;
    const char *card; /* that came with the model, or NULL */
    size_t card_bytes;
    char *read_card; /* where it lies beside the model; owned */
    cJSON *before;   /* its provenance.json, or NULL */
    bool same;       /* of these weights */
    cJSON *info;     /* the new one */
    char name[128];
    char model[128 + PUB_MAX_NAME + 2]; /* how commands call it: the name, or name/FILE */
} making;

static lq_status artifact_no_memory(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "out of memory");
}

/* ---- the model's own files ---- */
static bool is_made(const char *name)
{
    return strcmp(name, PUB_SUMS) == 0 || strcmp(name, PUB_PROVENANCE) == 0 ||
           strcmp(name, PUB_ATTRIBUTES) == 0 || strcmp(name, PUB_CARD) == 0;
}

static lq_status refuse_loss(const making *m, const char *name, lq_err *err)
{
    return lq_fail(err, LQ_EUSAGE,
                   "target: %s is the model's own folder, which is replaced: expected nothing that "
                   "would be lost, found %s: publish to another folder",
                   m->path, name);
}

static lq_status artifact_add_entry(making *m, const char *dir, const char *prefix,
                                    const char *entry, void (*left_out)(const char *name),
                                    lq_err *err)
{
    char name[600], path[4200];
    lq_status s = lq_path_join(path, sizeof path, dir, entry, err);
    snprintf(name, sizeof name, "%s%s", prefix, entry);
    if (s || is_made(name) || lq_is_dir(path)) return s;
    const model_file *kind = model_file_of(name);
    /* Other weights beside the model were checked by nobody. */
    if (entry[0] == '.' || !kind || (kind->weights && !src_reads(m->src, path))) {
        if (entry[0] != '.' && m->o->in_place) return refuse_loss(m, name, err);
        if (left_out && entry[0] != '.') left_out(name);
        return LQ_OK;
    }
    return pub_add_path(m->fs, name, path, err);
}

static lq_status add_folder(making *m, const char *dir, const char *prefix,
                            void (*left_out)(const char *name), lq_err *err)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    lq_status s = LQ_OK;
    if (!d && *prefix && (errno == ENOENT || errno == ENOTDIR)) return LQ_OK;
    if (!d) return lq_open_failed(err, dir);
    while (!s && (e = lq_next_entry(&s, d, dir, err)))
        s = artifact_add_entry(m, dir, prefix, e->d_name, left_out, err);
    closedir(d);
    return s;
}

/* A single file takes along what others want to see without opening it. */
static bool beside_a_file(const char *blob)
{
    return strcmp(blob, "config.json") == 0 || strcmp(blob, "generation_config.json") == 0 ||
           strncasecmp(blob, "licen", 5) == 0;
}

static lq_status add_file(making *m, const char *path, lq_err *err)
{
    const char *slash = strrchr(path, '/');
    return pub_add_path(m->fs, slash ? slash + 1 : path, path, err);
}

/* The other parts of a split GGUF file. */
static lq_status add_parts(making *m, lq_err *err)
{
    char path[4200];
    unsigned long parts = 0;
    const char *mark = strstr(m->path, "-00001-of-");
    lq_status s = LQ_OK;
    if (mark && strcmp(src_format(m->src), "gguf") == 0) parts = strtoul(mark + 10, NULL, 10);
    for (unsigned long i = 2; i <= parts && !s; i++) {
        const int n = snprintf(path, sizeof path, "%.*s-%05lu%s", (int)(mark - m->path), m->path, i,
                               mark + 6);
        s = n < 0 || (size_t)n >= sizeof path ? lq_fail(err, LQ_EVALUE, "%s: too long", m->path)
                                              : add_file(m, path, err);
    }
    return s;
}

/* The files of a folder's modules, as modules.json names them. */
static lq_status add_modules(making *m, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < src_n_blobs(m->src) && !s; i++) {
        const char *blob = src_blob_at(m->src, i)->name;
        char path[4200], name[PUB_MAX_NAME];
        size_t folder;
        if (!model_module_blob(blob, &folder)) continue;
        snprintf(name, sizeof name, "%s", blob);
        name[folder] = '/';
        s = lq_path_join(path, sizeof path, m->path, name, err);
        if (!s) s = pub_add_path(m->fs, name, path, err);
    }
    return s;
}

static lq_status add_model(making *m, void (*left_out)(const char *name), lq_err *err)
{
    char sub[4200];
    if (lq_is_dir(m->path)) {
        lq_status s = add_folder(m, m->path, "", left_out, err);
        if (!s) s = lq_path_join(sub, sizeof sub, m->path, "additional_chat_templates", err);
        if (!s) s = add_folder(m, sub, "additional_chat_templates/", left_out, err);
        return s ? s : add_modules(m, err);
    }
    lq_status s = add_file(m, m->path, err);
    if (!s) s = add_parts(m, err);
    for (size_t i = 0; i < src_n_blobs(m->src) && !s; i++) {
        const src_blob *b = src_blob_at(m->src, i);
        if (beside_a_file(b->name)) s = pub_add_data(m->fs, b->name, b->data, b->bytes, err);
    }
    return s;
}

/* ---- what came with it ---- */
static lq_status read_before(making *m, lq_err *err)
{
    char path[4200];
    const src_blob *b = src_find_blob(m->src, PUB_CARD);
    lq_status s = LQ_OK;
    if (b) {
        m->card = (const char *)b->data;
        m->card_bytes = b->bytes;
    }
    if (!lq_is_dir(m->path)) return LQ_OK;
    if (!b) s = lq_path_join(path, sizeof path, m->path, PUB_CARD, err);
    if (!s && !b && lq_exists(path)) {
        s = lq_read_file(&m->read_card, &m->card_bytes, path, PUB_MAX_SMALL, err);
        m->card = m->read_card;
    }
    if (!s) s = lq_path_join(path, sizeof path, m->path, PUB_PROVENANCE, err);
    if (!s && lq_exists(path)) s = js_parse_file(&m->before, path, PUB_MAX_SMALL, JS_UNIQUE, err);
    return s;
}

/* The model's own card stays readable beside ours. */
static lq_status keep_card(making *m, lq_err *err)
{
    if (!m->card || memmem(m->card, m->card_bytes, CARD_MARK, strlen(CARD_MARK))) return LQ_OK;
    if (pub_find(m->fs, PUB_BASE_CARD))
        return m->o->in_place ? refuse_loss(m, PUB_CARD, err) : LQ_OK;
    return pub_add_data(m->fs, PUB_BASE_CARD, m->card, m->card_bytes, err);
}

static lq_status add_license(making *m, lq_err *err)
{
    if (!m->o->license_file) return LQ_OK;
    pub_remove(m->fs, "LICENSE");
    return pub_add_path(m->fs, "LICENSE", m->o->license_file, err);
}

/* ---- provenance.json ---- */
/* In characters that any file system takes. */
static bool is_name(const char *s)
{
    const size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i])) return false;
    return n > 0 && n <= 120;
}

/* --name, the name it had, or the last part of the path without its ending, made one. */
static lq_status name_of(making *m, lq_err *err)
{
    const char *base = m->o->name, *before = NULL;
    char path[4200];
    js_str(m->before, "name", false, &before, NULL);
    if (base && !is_name(base))
        return lq_fail(
            err, LQ_EUSAGE,
            "--name: expected 1 to 120 letters, digits, '.', '_' and '-', found '%.150s'", base);
    if (!base) base = before;
    if (!base) {
        char *real = realpath(m->path, NULL);
        snprintf(path, sizeof path, "%s", real ? real : m->path);
        free(real);
        const char *slash = strrchr(path, '/');
        base = slash && slash[1] ? slash + 1 : "model";
    }
    snprintf(m->name, sizeof m->name, "%.120s", base);
    char *dot = strrchr(m->name, '.');
    if (dot && dot > m->name && !m->o->name && !before && !lq_is_dir(m->path)) *dot = 0;
    bool any = false; /* of a name in another script nothing is left */
    for (char *c = m->name; *c; c++) {
        any = any || isalnum((unsigned char)*c);
        if (!isalnum((unsigned char)*c) && !strchr("._-", *c)) *c = '-';
    }
    if (!any) snprintf(m->name, sizeof m->name, "model");
    return LQ_OK;
}

/* What the engines' commands name: a folder, or the one file in it. */
static void model_of(making *m)
{
    snprintf(m->model, sizeof m->model, "%s", m->name);
    if (strcmp(src_format(m->src), "safetensors") == 0) return;
    for (size_t i = 0; i < m->fs->n; i++)
        if (m->fs->f[i].kind->weights) {
            snprintf(m->model, sizeof m->model, "%s/%s", m->name, m->fs->f[i].name);
            return;
        }
}

/* An option, or what was there before. */
static lq_status add_word(making *m, const char *key, const char *option, lq_err *err)
{
    const char *v = option;
    if (!v) js_str(m->before, key, false, &v, NULL);
    if (!v) return LQ_OK;
    if (!fm_is_word(v) && !option)
        return lq_fail(err, LQ_EVALUE,
                       "%s/" PUB_PROVENANCE
                       ": %s: expected a name like org/model or apache-2.0, found '%.100s'",
                       m->path, key, v);
    if (!fm_is_word(v))
        return lq_fail(err, LQ_EUSAGE,
                       "%s: expected a name like org/model or apache-2.0, found '%.100s'", key, v);
    return cJSON_AddStringToObject(m->info, key, v) ? LQ_OK : artifact_no_memory(err);
}

/* What an earlier artifact says of its weights counts for those alone. */
static const cJSON *said_before(const making *m, const char *key)
{
    return m->same ? js_get(m->before, key) : NULL;
}

static lq_status add_weights(making *m, lq_err *err)
{
    static const char *const keys[] = { "evaluations", "recipe", "provenance" };
    char hex[33];
    lq_hash h;
    const char *was = "";
    bool any = false;
    lq_status s = src_fingerprint(&h, m->src, err);
    if (s) return s;
    lq_hash_hex(hex, &h);
    js_str(m->before, "weights_xxh3", false, &was, NULL);
    m->same = strcmp(was, hex) == 0;
    for (size_t i = 0; i < LQ_COUNT(keys); i++)
        any = any || js_get(m->before, keys[i]);
    if (any && !m->same && m->o->note)
        m->o->note(PUB_PROVENANCE
                   ": is of other weights: what it says of them (recipe, measurements) "
                   "is left out");
    return cJSON_AddStringToObject(m->info, "weights_xxh3", hex) ? LQ_OK : artifact_no_memory(err);
}

/* Why llmq cannot run it, without this machine's path to it. */
static const char *without_path(const making *m)
{
    const char *why = src_unfit(m->src, NULL);
    const size_t n = strlen(src_path(m->src));
    if (strncmp(why, src_path(m->src), n) != 0) return why;
    why += n;
    return why + strspn(why, ":/ ");
}

static lq_status add_totals(making *m, lq_err *err)
{
    src_totals t;
    lq_status s = src_count(&t, m->src, err);
    cJSON *list = s ? NULL : cJSON_AddArrayToObject(m->info, "schemes");
    for (size_t i = 0; i < t.n && !s; i++) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "scheme", t.per[i].scheme);
        cJSON_AddNumberToObject(o, "tensors", (double)t.per[i].tensors);
        cJSON_AddNumberToObject(o, "elements", t.per[i].elements);
        cJSON_AddNumberToObject(o, "bytes", t.per[i].bytes);
        if (!cJSON_AddItemToArray(list, o)) s = artifact_no_memory(err);
    }
    const arch_config *c = src_config(m->src);
    if (!s) {
        cJSON_AddStringToObject(m->info, "format", src_format(m->src));
        if (src_layout(m->src)) cJSON_AddStringToObject(m->info, "layout", src_layout(m->src));
        if (src_unfit(m->src, NULL))
            cJSON_AddStringToObject(m->info, "llmq_cannot_run", without_path(m));
        if (c) cJSON_AddStringToObject(m->info, "architecture", c->row->arch);
        cJSON_AddNumberToObject(m->info, "parameters", t.params);
        cJSON_AddNumberToObject(m->info, "bytes", t.bytes);
        cJSON_AddNumberToObject(m->info, "bits_per_weight",
                                src_bits_per(t.linear_bytes, t.linear_params));
        cJSON_AddNumberToObject(m->info, "bits_per_weight_model", src_bits_per(t.bytes, t.params));
    }
    src_totals_free(&t);
    return s;
}

/* A row of the table; only numbers that `llmq eval` gives. */
static lq_status add_eval(cJSON *list, const char *name, const cJSON *from, lq_err *err)
{
    static const char *const keys[] = { "ctx",        "tokens",         "windows",
                                        "perplexity", "ref_perplexity", "kl_mean",
                                        "kl_p99",     "top1_agree" };
    cJSON *o = cJSON_CreateObject();
    double v;
    cJSON_AddStringToObject(o, "name", name);
    for (size_t i = 0; i < LQ_COUNT(keys); i++) {
        v = (double)NAN;
        js_f64(from, keys[i], false, -1e300, 1e300, &v, NULL);
        if (isfinite(v)) cJSON_AddNumberToObject(o, keys[i], v);
    }
    return cJSON_AddItemToArray(list, o) ? LQ_OK : artifact_no_memory(err);
}

/* Weights that `convert` did not take over as they were. */
static double rounded_anew(const cJSON *converted)
{
    double n = 0;
    js_f64(converted, "requantized", false, 0, 1e15, &n, NULL);
    return n;
}

/* Is a measurement that names its weights one of these, or of those that they were converted from
 * with the same values? */
static lq_status check_measured(const making *m, const cJSON *doc, const char *path, lq_err *err)
{
    const cJSON *c = src_conversion(m->src);
    const char *of = NULL, *own = "", *from = "";
    js_str(doc, "weights_xxh3", false, &of, NULL);
    js_str(m->info, "weights_xxh3", false, &own, NULL);
    if (!(rounded_anew(c) > 0)) js_str(js_get(c, "from"), "xxh3", false, &from, NULL);
    if (!of || strcmp(of, own) == 0 || strcmp(of, from) == 0) return LQ_OK;
    return lq_fail(
        err, LQ_EVALUE,
        "%s: expected a measurement of the weights that are published (XXH3-128 %s), found "
        "one of %.64s",
        path, own, of);
}

/* The label of a measurement is its file's name without .json. */
static lq_status add_eval_file(cJSON *list, const making *m, const char *path, lq_err *err)
{
    char name[120];
    cJSON *doc;
    double ppl = 0;
    const char *slash = strrchr(path, '/');
    lq_status s = js_parse_file(&doc, path, PUB_MAX_SMALL, 0, err);
    if (s) return s;
    snprintf(name, sizeof name, "%.100s", slash ? slash + 1 : path);
    char *dot = strrchr(name, '.');
    if (dot && dot > name) *dot = 0;
    for (char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._-+ ", *c)) *c = '-';
    if (js_f64(doc, "perplexity", true, 0, 1e300, &ppl, NULL)) {
        s = lq_fail(err, LQ_EFORMAT, "%s: expected what `llmq eval --json` prints", path);
    } else {
        s = check_measured(m, doc, path, err);
        const cJSON *rows = js_get(doc, "by_ctx");
        const cJSON *row = cJSON_IsArray(rows) ? rows->child : doc;
        for (; row && !s; row = row == doc ? NULL : row->next)
            s = add_eval(list, name, row, err);
    }
    cJSON_Delete(doc);
    return s;
}

static lq_status add_evals(making *m, lq_err *err)
{
    const cJSON *check = js_get(js_get(m->info, "provenance"), "check");
    const cJSON *old = said_before(m, "evaluations");
    lq_status s = LQ_OK;
    if (!m->o->n_evals && old)
        return cJSON_AddItemToObject(m->info, "evaluations", cJSON_Duplicate(old, true))
                   ? LQ_OK
                   : artifact_no_memory(err);
    cJSON *list = cJSON_AddArrayToObject(m->info, "evaluations");
    for (int i = 0; i < m->o->n_evals && !s; i++)
        s = add_eval_file(list, m, m->o->evals[i], err);
    const bool anew = rounded_anew(src_conversion(m->src)) > 0;
    return s || !check ? s
                       : add_eval(list,
                                  anew ? "quantize's own check, before weights were rounded again"
                                       : "quantize's own check",
                                  check, err);
}

/* ---- --made-from: is it what the model was made from? ---- */
enum { ROWS = 4 }; /* of each weight that are looked at */

/* A type of 16 bits may have rounded the values. */
static bool close_to(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= 0x1p-7f * fabsf(b[i]) + FLT_MIN)) return false;
    return true;
}

static lq_status same_rows(bool *same, const qt_tensor *x, const qt_tensor *y, lq_err *err)
{
    lq_arena a = { 0 };
    qt_tensor p, q;
    lq_status s = src_first_rows(&p, x, &a, err);
    if (!s) s = src_first_rows(&q, y, &a, err);
    float *rows = s ? NULL : lq_push(&a, 2 * (size_t)p.K * sizeof *rows);
    if (!s && !rows) s = artifact_no_memory(err);
    for (int64_t n = 0; !s && n < p.N && n < ROWS && *same; n++) {
        qt_dequant(rows, &p, n, n + 1);
        qt_dequant(rows + p.K, &q, n, n + 1);
        *same = close_to(rows, rows + p.K, p.K);
    }
    lq_arena_free(&a);
    return s;
}

/* A weight of the model that `from` has not, or with other values; NULL: there is none. */
static lq_status find_stranger(const char **name, const src_source *src, const src_source *from,
                               lq_err *err)
{
    lq_status s = LQ_OK;
    *name = NULL;
    for (int64_t i = 0; i < src_n_tensors(src) && !s && !*name; i++) {
        const src_tensor *x = src_tensor_at(src, i), *y = src_find(from, x->name);
        const bool turned = y && (x->t.N != y->t.N || x->t.K != y->t.K);
        bool same = y && x->plain == y->plain && src_elements(x) == src_elements(y);
        if (same && x->plain && !turned) { /* floats of a Conv1D stand turned */
            qt_tensor p, q;
            src_load(&p, src, x);
            src_load(&q, from, y);
            s = same_rows(&same, &p, &q, err);
            src_unload(from, y);
            src_unload(src, x);
        }
        if (!same) *name = x->name;
    }
    return s;
}

static lq_status refuse_origin(const making *m, const char *why, const char *what, lq_err *err)
{
    return lq_fail(err, LQ_EUSAGE,
                   "--made-from: expected the file that %s was made from, found %s: %s%s", m->path,
                   m->o->made_from, why, what);
}

/* By the recipe that travels with the model where there is one, and by its weights. */
static lq_status check_origin(const making *m, const src_source *from, lq_err *err)
{
    const char *name = NULL, *was = NULL;
    char hex[33];
    lq_hash h;
    const cJSON *own = src_recipe(m->src), *c = src_conversion(m->src);
    const double anew = rounded_anew(c);
    if (own && !cJSON_Compare(own, src_recipe(from), true))
        return refuse_origin(m, "its recipe is another", "", err);
    lq_status s = anew > 0 ? src_fingerprint(&h, from, err) : LQ_OK;
    if (s) return s;
    if (anew > 0) { /* values differ by right: which weights it came from was written down */
        lq_hash_hex(hex, &h);
        js_str(js_get(c, "from"), "xxh3", false, &was, NULL);
        return was && strcmp(was, hex) == 0
                   ? LQ_OK
                   : refuse_origin(m, "its weights are others, XXH3-128 ", hex, err);
    }
    s = find_stranger(&name, m->src, from, err);
    return s || !name ? s : refuse_origin(m, "it has other weights in ", name, err);
}

/* recipe and provenance: of the file itself, of the one it was made from, or as they were. */
static lq_status add_history(making *m, lq_err *err)
{
    src_source *from = NULL;
    lq_status s = LQ_OK;
    if (m->o->made_from) {
        s = src_open(&from, m->o->made_from, NULL, err);
        if (!s && !src_recipe(from))
            s = lq_fail(err, LQ_EUSAGE, "--made-from: expected a file of llmq quantize, found %s",
                        m->o->made_from);
        if (!s) s = check_origin(m, from, err);
    }
    const src_source *of = from ? from : m->src;
    const cJSON *r = src_recipe(of) ? src_recipe(of) : said_before(m, "recipe");
    const cJSON *p = src_provenance(of) ? src_provenance(of) : said_before(m, "provenance");
    if (!s && r) cJSON_AddItemToObject(m->info, "recipe", cJSON_Duplicate(r, true));
    if (!s && p) cJSON_AddItemToObject(m->info, "provenance", cJSON_Duplicate(p, true));
    const cJSON *converted = src_conversion(m->src);
    if (!s && converted)
        cJSON_AddItemToObject(m->info, HISTORY_CONVERTED, cJSON_Duplicate(converted, true));
    src_close(from);
    return s;
}

/* Of the option, an earlier artifact (NULL), the model's card, the model itself. */
static const char *license_of(const making *m, const char *own)
{
    const char *said = src_license(m->src);
    if (m->o->license || js_get(m->before, "license")) return m->o->license;
    return own ? own : said && fm_is_word(said) ? said : NULL;
}

static lq_status make_info(making *m, lq_err *err)
{
    char *own = NULL;
    lq_status s = m->card ? fm_word(&own, m->card, m->card_bytes, "license", err) : LQ_OK;
    m->info = cJSON_CreateObject();
    cJSON_AddStringToObject(m->info, "llmq", LLMQ_VERSION);
    cJSON_AddStringToObject(m->info, "name", m->name);
    cJSON_AddStringToObject(m->info, "model", m->model);
    if (!s) s = add_word(m, "base_model", m->o->base_model, err);
    if (!s) s = add_word(m, "license", license_of(m, own), err);
    if (!s) s = add_weights(m, err);
    if (!s) s = add_totals(m, err);
    if (!s) s = add_history(m, err);
    if (!s) s = add_evals(m, err);
    free(own);
    return s;
}

static lq_status add_info(making *m, lq_err *err)
{
    char *text = js_print(m->info, true);
    if (!text) return artifact_no_memory(err);
    lq_status s = pub_add_data(m->fs, PUB_PROVENANCE, text, strlen(text), err);
    free(text);
    return s;
}

/* ---- card and attributes ---- */
static lq_status add_card(making *m, lq_err *err)
{
    static const char *const keys[] = { "license_name", "license_link", "language" };
    lq_buf b = { 0 }, carried = { 0 };
    cJSON *handovers = cJSON_CreateArray(), *one;
    lq_status s = LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(keys) && m->card && !s; i++) {
        char *lines;
        s = fm_lines(&lines, m->card, m->card_bytes, keys[i], err);
        if (lines) lq_buf_puts(&carried, lines);
        free(lines);
    }
    lq_buf_add(&carried, "", 1);
    if (!s && carried.oom) s = artifact_no_memory(err);
    for (size_t i = 0; handover_engine(i) && src_config(m->src) && !src_unfit(m->src, NULL) && !s;
         i++) {
        s = handover_plan(&one, m->src, m->model, handover_engine(i), err);
        if (!s && !cJSON_AddItemToArray(handovers, one)) {
            cJSON_Delete(one);
            s = artifact_no_memory(err);
        }
    }
    if (!s) card_write(&b, m->info, m->fs, handovers, carried.p);
    if (!s) s = b.oom ? artifact_no_memory(err) : pub_add_data(m->fs, PUB_CARD, b.p, b.n, err);
    cJSON_Delete(handovers);
    free(carried.p);
    free(b.p);
    return s;
}

/* For clones by git: which files git-lfs holds. */
static lq_status add_attributes(making *m, lq_err *err)
{
    lq_buf b = { 0 };
    for (size_t i = 0; i < m->fs->n; i++) {
        if (!m->fs->f[i].kind->weights) continue;
        lq_buf_puts(&b, "\"");
        lq_buf_puts(&b, m->fs->f[i].name);
        lq_buf_puts(&b, "\" filter=lfs diff=lfs merge=lfs -text\n");
    }
    lq_status s =
        b.oom ? artifact_no_memory(err) : pub_add_data(m->fs, PUB_ATTRIBUTES, b.p, b.n, err);
    free(b.p);
    return s;
}

lq_status artifact_make(pub_files *fs, const src_source *src, const char *path,
                        const artifact_opts *o, void (*left_out)(const char *name),
                        const lq_job *job, lq_err *err)
{
    making m = { .fs = fs, .src = src, .path = path, .o = o };
    lq_status s = read_before(&m, err);
    if (!s) s = add_model(&m, left_out, err);
    if (!s) s = keep_card(&m, err);
    if (!s) s = add_license(&m, err);
    pub_sort(fs);
    if (!s) s = name_of(&m, err);
    if (!s) {
        model_of(&m);
        s = make_info(&m, err);
    }
    if (!s) s = add_card(&m, err);
    if (!s) s = add_info(&m, err);
    if (!s) s = add_attributes(&m, err);
    if (!s) s = pub_hash(fs, job, err);
    if (!s) s = pub_add_sums(fs, err);
    free(m.read_card);
    cJSON_Delete(m.before);
    cJSON_Delete(m.info);
    if (s) pub_files_free(fs);
    return s;
}
