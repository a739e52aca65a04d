/* tools/cmd_inspect.c - `llmq inspect`: what is in a model file, as a tree or as JSON. */
#include "tools/cmds.h"

#include "base/hash.h"
#include "base/json.h"
#include "formats/arch/generation_config.h"
#include "formats/source/source.h"
#include "formats/source/totals.h"
#include "tools/cli/html_page.h"
#include "tools/cli/outputs.h"
#include "tools/report/inspect_html.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>

typedef struct {
    bool all;
    const char *html;
} inspect_opts;

#define F(field) offsetof(inspect_opts, field)
static const opt_row rows[] = {
    { "all", 'a', OPT_FLAG, F(all),
      .help = "print every layer; without it a layer equal to the one before is only counted" },
    { "html", 0, OPT_STR, F(html), .arg = "PAGE",
      .help = "write a page that draws each tensor's layout (planes, bits, codes, scales, values) "
              "instead of printing" },
};

/* ---- JSON ---- */
static bool add_tensor(cJSON *list, const src_source *s, int64_t i)
{
    const src_tensor *x = src_tensor_at(s, i);
    char scheme[40], hex[33];
    const lq_hash h = src_tensor_hash(s, i);
    cJSON *o = cJSON_CreateObject(), *shape = NULL;
    src_scheme_text(scheme, x);
    lq_hash_hex(hex, &h);
    cJSON_AddItemToArray(list, o);
    bool ok = o && cJSON_AddStringToObject(o, "name", x->name) &&
              (shape = cJSON_AddArrayToObject(o, "shape")) != NULL;
    for (int d = 0; d < x->n_dims && ok; d++)
        ok = cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)x->shape[d]));
    return ok && cJSON_AddStringToObject(o, "scheme", scheme) &&
           cJSON_AddStringToObject(o, "layout", qt_layout_text(x->t.layout)) &&
           cJSON_AddNumberToObject(o, "bytes", (double)src_bytes(x)) &&
           cJSON_AddStringToObject(o, "xxh3", hex);
}

static bool add_schemes(cJSON *doc, const src_totals *t)
{
    cJSON *list = cJSON_AddArrayToObject(doc, "schemes");
    bool ok = list != NULL;
    for (size_t k = 0; k < t->n && ok; k++) {
        const src_total *p = &t->per[k];
        cJSON *o = cJSON_CreateObject();
        cJSON_AddItemToArray(list, o);
        ok = o && cJSON_AddStringToObject(o, "scheme", p->scheme) &&
             cJSON_AddNumberToObject(o, "tensors", (double)p->tensors) &&
             cJSON_AddNumberToObject(o, "elements", p->elements) &&
             cJSON_AddNumberToObject(o, "bytes", p->bytes) &&
             cJSON_AddNumberToObject(o, "bpw", src_bits_per(p->bytes, p->elements));
    }
    return ok;
}

static bool add_blobs(cJSON *doc, const src_source *s)
{
    cJSON *list = cJSON_AddArrayToObject(doc, "files");
    bool ok = list != NULL;
    for (size_t i = 0; i < src_n_blobs(s) && ok; i++) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddItemToArray(list, o);
        ok = o && cJSON_AddStringToObject(o, "name", src_blob_at(s, i)->name) &&
             cJSON_AddNumberToObject(o, "bytes", (double)src_blob_at(s, i)->bytes);
    }
    return ok;
}

static bool add_notes(cJSON *doc, const src_source *s)
{
    cJSON *list = cJSON_AddArrayToObject(doc, "notes");
    bool ok = list != NULL;
    for (size_t i = 0; i < src_n_notes(s) && ok; i++)
        ok = cJSON_AddItemToArray(list, cJSON_CreateString(src_note_at(s, i)));
    return ok;
}

/* A file that cannot be used is inspected all the same. */
static lq_status read_generation(gen_defaults *g, const src_source *s, lq_err *err)
{
    const src_blob *b = src_find_blob(s, "generation_config.json");
    const lq_status st = gen_read(g, b ? b->data : NULL, b ? b->bytes : 0, err);
    return st ? lq_wrap(err, st, "generation_config.json") : LQ_OK;
}

static bool add_item(cJSON *doc, const char *key, cJSON *v)
{
    return cJSON_AddItemToObject(doc, key, v ? v : cJSON_CreateNull());
}

/* What the model's makers ask for: sampling, and the ids that end an answer. */
static cJSON *generation_json(const src_source *s, const arch_config *c)
{
    gen_defaults g;
    cJSON *o = read_generation(&g, s, NULL) ? cJSON_CreateObject() : gen_json(&g), *ids;
    if (!c || !o) return o;
    ids = cJSON_AddArrayToObject(o, "eos_token_id");
    for (int i = 0; i < c->n_eos && ids; i++)
        cJSON_AddItemToArray(ids, cJSON_CreateNumber(c->eos[i]));
    return o;
}

/* NULL: out of memory. */
static cJSON *describe(const src_source *s, const src_totals *t)
{
    const arch_config *c = src_config(s);
    cJSON *doc = cJSON_CreateObject(), *list = NULL;
    bool ok =
        doc && cJSON_AddStringToObject(doc, "format", src_format(s)) &&
        add_item(doc, "layout", src_layout(s) ? cJSON_CreateString(src_layout(s)) : NULL) &&
        add_item(doc, "arch", c ? cJSON_CreateString(c->row->arch) : NULL) &&
        cJSON_AddNumberToObject(doc, "params", t->params) &&
        cJSON_AddNumberToObject(doc, "params_active", t->params - (c ? arch_idle_params(c) : 0)) &&
        cJSON_AddNumberToObject(doc, "bytes", t->bytes) &&
        cJSON_AddNumberToObject(doc, "file_bytes", (double)src_file_bytes(s)) &&
        add_item(doc, "cannot_run",
                 src_unfit(s, NULL) ? cJSON_CreateString(src_unfit(s, NULL)) : NULL) &&
        cJSON_AddNumberToObject(doc, "bpw", src_bits_per(t->linear_bytes, t->linear_params)) &&
        cJSON_AddNumberToObject(doc, "bpw_model", src_bits_per(t->bytes, t->params)) &&
        add_item(doc, "config", c ? arch_config_json(c) : NULL) &&
        add_item(doc, "generation", generation_json(s, c)) && add_schemes(doc, t) &&
        (list = cJSON_AddArrayToObject(doc, "tensors")) != NULL;
    for (int64_t i = 0; i < src_n_tensors(s) && ok; i++)
        ok = add_tensor(list, s, i);
    ok = ok && add_blobs(doc, s) && add_notes(doc, s) &&
         add_item(doc, "recipe", cJSON_Duplicate(src_recipe(s), true)) &&
         add_item(doc, "provenance", cJSON_Duplicate(src_provenance(s), true)) &&
         add_item(doc, "converted", cJSON_Duplicate(src_conversion(s), true));
    if (ok) return doc;
    cJSON_Delete(doc);
    return NULL;
}

static lq_status write_page(const char *path, const src_source *s, const src_totals *t, lq_err *err)
{
    cJSON *doc = describe(s, t);
    lq_status st = LQ_ENOMEM;
    if (doc && cJSON_AddItemToObject(doc, "path", cJSON_CreateString(src_path(s))))
        st = ihtml_write(path, doc, s, err);
    else
        lq_fail(err, st, "no memory for the page");
    cJSON_Delete(doc);
    return st ? lq_wrap(err, st, "--html") : LQ_OK;
}

static lq_status print_json(const src_source *s, const src_totals *t, lq_err *err)
{
    cJSON *doc = describe(s, t);
    return doc ? cmd_print_json(doc, err) : lq_fail(err, LQ_ENOMEM, "no memory for the report");
}

/* ---- the tree: tensors grouped by "...layers.N", equal groups counted ---- */
typedef struct {
    const src_tensor *t;
    size_t prefix; /* length of "model.layers.12"; 0: outside layers */
    int64_t layer; /* -1: outside layers */
} item;

static item make_item(const src_tensor *t)
{
    item it = { .t = t, .layer = -1 };
    for (const char *p = strchr(t->name, '.'); p; p = strchr(p + 1, '.')) {
        char *end;
        if (!isdigit((unsigned char)p[1])) continue;
        const int64_t layer = strtoll(p + 1, &end, 10);
        if (*end != '.') continue;
        it.layer = layer;
        it.prefix = (size_t)(end - t->name);
        break;
    }
    return it;
}

/* Outside layers first, then by layer, then by name. */
static int by_place(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return strcmp(x->t->name, y->t->name);
}

static void print_item(const item *it)
{
    char shape[96], scheme[40], size[16], name[512];
    src_shape_text(shape, it->t);
    src_scheme_text(scheme, it->t);
    snprintf(name, sizeof name, "%s", it->t->name + (it->prefix ? it->prefix + 1 : 0));
    printf("    %-36s %-16s %-18s %s\n", lq_printable(name), shape, scheme,
           opt_size_text(size, sizeof size, (double)src_bytes(it->t)));
}

static bool same_item(const item *a, const item *b)
{
    char x[40], y[40];
    src_scheme_text(x, a->t);
    src_scheme_text(y, b->t);
    return strcmp(a->t->name + a->prefix, b->t->name + b->prefix) == 0 && strcmp(x, y) == 0 &&
           a->t->n_dims == b->t->n_dims &&
           memcmp(a->t->shape, b->t->shape, sizeof a->t->shape) == 0;
}

static bool same_group(const item *a, size_t n, const item *b, size_t m)
{
    bool same = n == m;
    for (size_t i = 0; i < n && same; i++)
        same = same_item(&a[i], &b[i]);
    return same;
}

static size_t group_length(const item *it, size_t n)
{
    size_t k = 1;
    while (k < n && it[k].layer == it->layer)
        k++;
    return k;
}

static void print_groups(const item *it, size_t n, bool all)
{
    for (size_t i = 0, len; i < n; i += len) {
        len = group_length(it + i, n - i);
        if (it[i].layer >= 0) printf("  %.*s\n", (int)it[i].prefix, it[i].t->name);
        for (size_t k = 0; k < len; k++)
            print_item(&it[i + k]);
        size_t end = i + len, more; /* of the run of groups equal to this one */
        int64_t last = it[i].layer;
        while (!all && it[i].layer >= 0 && end < n) {
            more = group_length(it + end, n - end);
            if (!same_group(it + i, len, it + end, more)) break;
            last = it[end].layer;
            end += more;
        }
        if (last > it[i].layer)
            printf("  up to %.*s: %" PRId64 " more like it\n", (int)it[end - 1].prefix,
                   it[end - 1].t->name, (int64_t)((end - i) / len) - 1);
        len = end - i;
    }
}

static void print_config(const arch_config *c)
{
    char name[80], head[48] = "";
    arch_full_name(name, c);
    if (c->tied) snprintf(head, sizeof head, " (head tied)");
    if (c->head == HEAD_NONE) snprintf(head, sizeof head, " (no head)");
    if (c->head == HEAD_LABELS)
        snprintf(head, sizeof head, " (no head), %" PRId64 " labels", c->labels);
    printf("  %s: %" PRId64 " layers, hidden %" PRId64 ", %" PRId64 " heads and %" PRId64
           " for k and v of %" PRId64 ", mlp %" PRId64 "\n",
           name, c->layers, c->hidden, c->heads, c->kv_heads, c->head_dim, c->ffn);
    printf("  vocabulary %" PRId64 "%s, context %" PRId64 ", rope %s, theta %g", c->vocab, head,
           c->max_pos, arch_rope_text(c->rope[ROPE_MAIN].kind), c->rope[ROPE_MAIN].theta);
    if (c->window) printf(", window %" PRId64, c->window);
    printf("\n");
    if (c->experts)
        printf("  experts %" PRId64 ", %" PRId64 " of them used, mlp %" PRId64
               "%s%s: %.4g M parameters unused per token\n",
               c->experts, c->experts_used, c->expert_ffn,
               c->shared_ffn ? ", and a shared one" : "",
               c->zero_experts ? ", and others that put out what they read" : "",
               arch_idle_params(c) / 1e6);
    if (c->wrapper)
        printf("  the text part of a %s: other tensors are carried, not used\n", c->wrapper);
}

static lq_status print_object(const char *title, const cJSON *o, lq_err *err)
{
    lq_status s = LQ_OK;
    if (o) printf("%s\n", title);
    for (const cJSON *m = o ? o->child : NULL; m && !s; m = m->next) {
        lq_buf b = { 0 };
        s = js_canonical(&b, m, err);
        if (!s) printf("  %-20s %.*s\n", m->string, (int)b.n, b.p);
        free(b.p);
    }
    return s;
}

static lq_status print_generation(const src_source *s, lq_err *err)
{
    gen_defaults g;
    const lq_status bad = read_generation(&g, s, err);
    if (bad == LQ_ENOMEM) return bad;
    if (bad) {
        printf("  generation: %s\n", err->msg);
        return LQ_OK;
    }
    cJSON *o = generation_json(s, src_config(s));
    char *text = js_print(o, false);
    if (text && o->child) printf("  generation: %s\n", text);
    cJSON_Delete(o);
    free(text);
    return text ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for the report");
}

static lq_status print_tree(const src_source *s, const src_totals *t, const char *path, bool all,
                            lq_err *err)
{
    const size_t n = (size_t)src_n_tensors(s);
    char size[16];
    item *items = calloc(n + 1, sizeof *items);
    if (!items) return lq_fail(err, LQ_ENOMEM, "no memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        items[i] = make_item(src_tensor_at(s, (int64_t)i));
    qsort(items, n, sizeof *items, by_place);
    char file[16];
    const char *kind = src_layout(s), *unfit = src_unfit(s, NULL);
    printf("%s: %s%s%s%s, %.4g M parameters, %s of tensors", path, src_format(s), kind ? " (" : "",
           kind ? kind : "", kind ? ")" : "", t->params / 1e6,
           opt_size_text(size, sizeof size, t->bytes));
    printf(" in %s\n", opt_size_text(file, sizeof file, (double)src_file_bytes(s)));
    if (src_config(s)) print_config(src_config(s));
    printf("  %.3f bits per weight in %s, %.3f over all\n",
           src_bits_per(t->linear_bytes, t->linear_params),
           src_config(s) ? "the linear layers"
                         : "all matrices (which are linear layers is not known)",
           src_bits_per(t->bytes, t->params));
    if (unfit) printf("  llmq cannot run it: %s\n", unfit);
    for (size_t i = 0; i < src_n_notes(s); i++)
        printf("  note: %s\n", src_note_at(s, i));
    const lq_status generation = print_generation(s, err);
    if (!generation) printf("tensors\n");
    if (!generation) print_groups(items, n, all);
    free(items);
    if (generation) return generation;
    printf("schemes\n");
    for (size_t k = 0; k < t->n; k++)
        printf("  %-18s %5" PRId64 " tensors %12.0f elements  %6.3f bits each  %s\n",
               t->per[k].scheme, t->per[k].tensors, t->per[k].elements,
               src_bits_per(t->per[k].bytes, t->per[k].elements),
               opt_size_text(size, sizeof size, t->per[k].bytes));
    if (src_n_blobs(s)) printf("files\n");
    for (size_t i = 0; i < src_n_blobs(s); i++)
        printf("  %-36s %s\n", src_blob_at(s, i)->name,
               opt_size_text(size, sizeof size, (double)src_blob_at(s, i)->bytes));
    lq_status st = print_object("recipe", src_recipe(s), err);
    if (!st) st = print_object("provenance", src_provenance(s), err);
    return st ? st : print_object("converted", src_conversion(s), err);
}

static lq_status inspect_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const inspect_opts *o = opts;
    src_source *s;
    src_totals t = { 0 };
    lq_status st = src_open(&s, c->argv[0], NULL, err);
    if (st) return st;
    if (o->html) st = output_check_place("--html", o->html, false, s, c->argv[0], err);
    if (!st && o->html)
        st = output_check_kind("--html", o->html, "<!doctype html", "an HTML page", err);
    if (!st) st = src_count(&t, s, err);
    if (!st && o->html) st = write_page(o->html, s, &t, err);
    if (!st && c->json)
        st = print_json(s, &t, err);
    else if (!st && !o->html)
        st = print_tree(s, &t, src_path(s), o->all, err);
    src_totals_free(&t);
    src_close(s);
    return st;
}

const cmd_row cmd_inspect = {
    .name = "inspect",
    .summary = "what is in a model: tensors, schemes, bits per weight, recipe",
    .details =
        "Bits per weight count every byte that a tensor needs. xxh3 in the JSON is the XXH3-128 "
        "of a tensor's bytes, or of its planes' checksums where it has several.",
    .args = { { "FILE", 1, 1,
                "a .llmq, .gguf or .safetensors file, or a Hugging Face folder, quantized or "
                "not",
                FILES_MODEL } },
    .groups = { OPT_GROUP("Options", rows, 0) },
    .examples = "llmq inspect model.llmq\0"
                "llmq inspect models/novels-6m --all\0"
                "llmq inspect model.llmq --html page.html\0"
                "llmq inspect model.llmq --json | jq .bpw\0",
    .opts_bytes = sizeof(inspect_opts),
    .run = inspect_run,
};
