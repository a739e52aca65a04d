/* tools/model_free/model_free.c - see model_free.h. */
#include "tools/model_free/model_free.h"

#include "base/clock.h"
#include "base/os.h"
#include "convert/model_free/model_free.h"
#include "tools/cli/load.h"
#include "tools/cli/outputs.h"
#include "tools/cli/progress.h"
#include "tools/cmds.h"
#include "tools/report/quantize_report.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

#define F(field) offsetof(model_free_opts, field)
const opt_row model_free_rows[MODEL_FREE_N] = {
    { "model-free", 0, OPT_FLAG, F(on),
      .help =
          "round the matrices of a checkpoint of any architecture, by a method without text, and "
          "copy all else; OUT is a folder" },
    { "include", 0, OPT_LIST, F(includes), .arg = "REGEX",
      .help = "--model-free: also these of the matrices that are left unasked: embeddings, head, "
              "routers, convolutions, small parts of state-space layers, towers, projectors" },
    { "shard-size", 0, OPT_SIZE, F(shard_size), .def = "5G",
      .help = "--model-free: bytes per file at most; 0: one file" },
};

lq_status model_free_check(const cmd_ctx *c, const model_free_opts *o, lq_err *err)
{
    static const char *const others[] = {
        "calib",        "calib-samples", "calib-len", "self-samples", "seed",         "rotate",
        "report",       "check",         "embed",     "reproducible", "memory-limit", "device",
        "double-quant", "bpw",           "tune",      "mtp",
    };
    for (size_t i = 0; i < LQ_COUNT(others) && o->on; i++)
        if (opt_given(c, others[i]))
            return lq_fail(err, LQ_EUSAGE, "--%s does not go with --model-free", others[i]);
    for (size_t i = 1; i < MODEL_FREE_N && !o->on; i++)
        if (opt_given(c, model_free_rows[i].name))
            return lq_fail(err, LQ_EUSAGE, "--%s needs --model-free", model_free_rows[i].name);
    return LQ_OK;
}

/* ---- what it prints ---- */
static const char *fate(char text[40], const mf_item *it)
{
    if (it->rounded)
        qt_scheme_text(text, &it->scheme);
    else if (it->t->plain)
        qt_scheme_text(text, &it->t->t.scheme);
    else
        snprintf(text, 40, "%s", lq_dtype_text(it->t->raw_dtype));
    return text;
}

static cJSON *items_json(const mf_run *m)
{
    cJSON *list = cJSON_CreateArray();
    char text[40];
    for (size_t i = 0; i < mf_n_items(m); i++) {
        const mf_item *it = mf_item_at(m, i);
        cJSON *t = cJSON_CreateObject();
        cJSON_AddItemToArray(list, t);
        cJSON_AddStringToObject(t, "name", it->t->name);
        cJSON_AddStringToObject(t, "scheme", fate(text, it));
        cJSON_AddNumberToObject(t, "bytes", (double)it->bytes);
        if (it->why) cJSON_AddStringToObject(t, "left", it->why);
    }
    return list;
}

static void print_items(const mf_run *m)
{
    char text[40];
    for (size_t i = 0; i < mf_n_items(m); i++) {
        const mf_item *it = mf_item_at(m, i);
        printf("%-56s %-14s %12zu bytes%s%s\n", it->t->name, fate(text, it), it->bytes,
               it->why ? "  left: " : "", it->why ? it->why : "");
    }
}

/* "left: 12 a router or gate, 1 the output head" */
static void print_left(const mf_run *m)
{
    const char *why[16];
    int64_t n[LQ_COUNT(why)] = { 0 };
    size_t kinds = 0;
    for (size_t i = 0; i < mf_n_items(m); i++) {
        const char *w = mf_item_at(m, i)->why;
        size_t k = 0;
        while (w && k < kinds && strcmp(why[k], w) != 0)
            k++;
        if (!w || k == LQ_COUNT(why)) continue;
        if (k == kinds) why[kinds++] = w;
        n[k]++;
    }
    for (size_t k = 0; k < kinds; k++)
        printf("%s%lld (%s)%s", k ? ", " : "matrices left: ", (long long)n[k], why[k],
               k + 1 == kinds ? "\n" : "");
}

static lq_status print_plan(const mf_run *m, const cmd_ctx *c, lq_err *err)
{
    double in = 0, out = 0;
    char a[16], b[16];
    for (size_t i = 0; i < mf_n_items(m); i++) {
        in += (double)src_bytes(mf_item_at(m, i)->t);
        out += (double)mf_item_at(m, i)->bytes;
    }
    if (c->json) {
        cJSON *doc = cJSON_CreateObject();
        cJSON_AddItemToObject(doc, "tensors", items_json(m));
        cJSON_AddNumberToObject(doc, "bytes_in", in);
        cJSON_AddNumberToObject(doc, "bytes_out", out);
        return cmd_give_json(c, doc, err);
    }
    print_items(m);
    print_left(m);
    printf("%s of tensors become %s\n", opt_size_text(a, sizeof a, in),
           opt_size_text(b, sizeof b, out));
    return LQ_OK;
}

static lq_status print_result(const mf_run *m, const mf_report *r, const char *out, double secs,
                              const cmd_ctx *c, lq_err *err)
{
    char a[16], b[16];
    if (c->json) {
        cJSON *doc = cJSON_CreateObject();
        cJSON_AddStringToObject(doc, "out", out);
        cJSON_AddNumberToObject(doc, "rounded", (double)r->rounded);
        cJSON_AddNumberToObject(doc, "files", r->n_shards);
        cJSON_AddNumberToObject(doc, "resumed", r->resumed);
        cJSON_AddNumberToObject(doc, "bytes_in", (double)r->bytes_in);
        cJSON_AddNumberToObject(doc, "bytes_out", (double)r->bytes_out);
        cJSON_AddNumberToObject(doc, "seconds", secs);
        cJSON_AddNumberToObject(doc, "peak_rss", (double)os_memory_peak());
        cJSON_AddItemToObject(doc, "tensors", items_json(m));
        return cmd_give_json(c, doc, err);
    }
    if (r->resumed < 0) {
        printf("%s: is what this run would make\n", out);
        return LQ_OK;
    }
    print_left(m);
    printf("%s: %s -> %s, %lld matrices rounded, %d file%s, %.1f s\n", out,
           opt_size_text(a, sizeof a, (double)r->bytes_in),
           opt_size_text(b, sizeof b, (double)r->bytes_out), (long long)r->rounded, r->n_shards,
           r->n_shards == 1 ? "" : "s", secs);
    return LQ_OK;
}

/* vLLM's kernels for experts of 4 or 8 bits know no zero points. */
static void note_experts(const mf_run *m)
{
    for (size_t i = 0; i < mf_n_items(m); i++) {
        const mf_item *it = mf_item_at(m, i);
        if (!it->rounded || it->scheme.kind != QT_UINT || !it->scheme.zero ||
            !strstr(it->t->name, "experts."))
            continue;
        prog_say(LOG_WARN, "note: experts with zero points: vLLM's kernels ask for --sym");
        return;
    }
}

lq_status model_free_run(const cmd_ctx *c, const model_free_opts *o, qz_opts *q,
                         const model_free_place *where, lq_err *err)
{
    const double start = lq_now();
    src_source *src = NULL;
    mf_run *m = NULL;
    pool *p = NULL;
    mf_report r;
    const char *to = o->to ? o->to : "compressed-tensors";
    const mf_opts opts = { .q = q,
                           .to = to,
                           .includes = o->includes.v,
                           .n_includes = o->includes.n,
                           .shard_size = o->shard_size,
                           .resume = where->resume,
                           .restart = where->restart,
                           .voice = qrep_voice };
    lq_status s = src_open(&src, c->argv[0], NULL, err);
    if (s) return s;
    if (where->out) s = output_check_place("--out", where->out, true, src, c->argv[0], err);
    if (!s && where->out) s = output_check_ending("--out", where->out, to, true, err);
    if (!s) s = mf_open(&m, src, &opts, err);
    if (!s) note_experts(m);
    if (!s && where->dry_run)
        s = print_plan(m, c, err);
    else if (!s) {
        s = pool_open(&p, c->threads, err);
        if (!s) s = mf_write(&r, m, where->out, p, c->job, err);
        prog_end();
        if (!s) s = print_result(m, &r, where->out, lq_now() - start, c, err);
    }
    mf_close(m);
    pool_close(p);
    src_close(src);
    return s;
}
