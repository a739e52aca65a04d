/* tools/cmd_imatrix.c - `llmq imatrix MODEL -o FILE.gguf`: an importance matrix as llama-imatrix makes it. */
#include "calib/forward_pass.h"
#include "convert/imatrix_write.h"
#include "formats/gguf/gguf_names.h"
#include "tools/cli/carried_tok.h"
#include "tools/cli/load.h"
#include "tools/cli/outputs.h"
#include "tools/cmds.h"
#include "tools/report/quantize_calib.h"

#include <stdlib.h>

typedef struct {
    const char *out, *calib;
    int64_t samples, len, seed;
} imatrix_cmd_opts;

#define F(field) offsetof(imatrix_cmd_opts, field)
static const opt_row rows[] = {
    { "out", 'o', OPT_STR, F(out), .arg = "FILE", .required = true, .help = "GGUF file to write" },
    { "calib", 0, OPT_STR, F(calib), .def = "builtin", .arg = "FILE[:WEIGHT],...|builtin",
      .help = "text, as of `llmq quantize`" },
    { "calib-samples", 0, OPT_INT, F(samples), .def = "128", .lo = 1, .hi = 1 << 20,
      .help = "windows of text" },
    { "calib-len", 0, OPT_INT, F(len), .def = "512", .lo = 8, .hi = 1 << 20,
      .help = "tokens in each (unasked: at most the positions of MODEL)" },
    { "seed", 0, OPT_INT, F(seed), .def = "0", .lo = 0, .hi = 9007199254740991.0,
      .help = "which windows are chosen" },
};

typedef struct {
    const src_source *src;
    const gguf_arch *arch;
    imatrix_sums *e;
    size_t n, room;
    lq_arena arena;
} sums;

/* The entry of that name, with room for its experts. */
static imatrix_sums *entry_of(sums *s, const char *name, int64_t K, int64_t experts)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->e[i].name, name) == 0) return &s->e[i];
    imatrix_sums *e = &s->e[s->n];
    *e = (imatrix_sums){ .K = K, .experts = experts };
    snprintf(e->name, sizeof e->name, "%s", name);
    e->sums = lq_push(&s->arena, (size_t)(K * experts) * sizeof *e->sums);
    e->tokens = lq_push(&s->arena, (size_t)experts * sizeof *e->tokens);
    if (!e->sums || !e->tokens) return NULL;
    s->n++;
    return e;
}

static lq_status add(sums *s, const arch_slot *slot, const cal_stats *st, int64_t expert,
                     int64_t experts, lq_err *err)
{
    const gguf_name *names[2];
    char name[64];
    const int parts = gguf_names_of(names, s->arch, src_config(s->src), slot->role);
    for (int i = 0; i < parts; i++) {
        gguf_tensor_name(name, names[i], slot);
        imatrix_sums *e = entry_of(s, name, st->K, experts);
        if (!e) return lq_fail(err, LQ_ENOMEM, "no memory for %lld inputs", (long long)st->K);
        for (int64_t k = 0; k < st->K; k++)
            e->sums[expert * st->K + k] = (float)st->sum_sq[k];
        e->tokens[expert] = (float)st->tokens;
    }
    return LQ_OK;
}

/* What a tensor of this layer reads: of stacked experts one after the other. */
static lq_status add_tensor(sums *s, const src_tensor *t, int64_t layer, cal_layer_stats *st,
                            lq_err *err)
{
    const arch_config *c = src_config(s->src);
    arch_slot slot;
    if (!arch_slot_of(c, t->name, &slot) || slot.bias || slot.layer != layer ||
        !arch_role_linear(slot.role))
        return LQ_OK;
    const bool each = arch_role_per_expert(slot.role);
    const int64_t experts = each ? c->experts : 1, first = slot.expert > 0 ? slot.expert : 0;
    const int64_t end = each && slot.expert < 0 ? experts : first + 1;
    lq_status r = LQ_OK;
    for (int64_t i = first; i < end && !r; i++) {
        const cal_stats *of = cal_stats_of(st, c, slot.role, each ? i : -1);
        if (of && of->K) r = add(s, &slot, of, i, experts, err);
    }
    return r;
}

static lq_status add_layer(sums *s, cal_pass *cal, cal_layer_stats *st, int64_t layer, pool *p,
                           const lq_job *job, lq_err *err)
{
    const arch_config *c = src_config(s->src);
    lq_arena a = { 0 };
    model_layer l;
    lq_status r = model_load_layer(&l, cal_model(cal), layer, &a, p, err);
    if (!r)
        r = cal_statistics(cal, st, layer, &l, 0, c->layer[layer].moe ? c->experts : 0, job, err);
    for (int64_t i = 0; i < src_n_tensors(s->src) && !r; i++)
        r = add_tensor(s, src_tensor_at(s->src, i), layer, st, err);
    if (!r && layer + 1 < c->layers) r = cal_advance(cal, layer, &l, job, err);
    lq_arena_free(&a);
    return r;
}

static lq_status collect(sums *s, src_source *src, const cal_samples *samples, pool *p,
                         const lq_job *job, lq_err *err)
{
    const arch_config *c = src_config(src);
    cal_pass *cal = NULL;
    cal_layer_stats st = { 0 };
    s->src = src;
    s->arch = gguf_arch_of(c);
    if (!s->arch)
        return lq_fail(err, LQ_EUNSUPPORTED, "architectures: GGUF has no name for %s",
                       c->row->arch);
    s->e = lq_push(&s->arena, 2 * (size_t)src_n_tensors(src) * sizeof *s->e);
    if (!s->e) return lq_fail(err, LQ_ENOMEM, "no memory");
    lq_status r = cal_open(&cal, src, samples, &(cal_opts){ 0 }, p, err);
    for (int64_t i = 0; i < c->layers && !r; i++) {
        r = lq_stopped(job) ? lq_fail(err, LQ_EINTR, "interrupted")
                            : add_layer(s, cal, &st, i, p, job, err);
        lq_report(job, "layers", (double)(i + 1), (double)c->layers);
    }
    cal_layer_stats_free(&st);
    cal_close(cal);
    return r;
}

static lq_status imatrix_cmd_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const imatrix_cmd_opts *o = opts;
    src_source *src = NULL;
    pool *p = NULL;
    carried_tok tok = { 0 };
    cal_samples samples = { 0 };
    sums sum = { 0 };
    lq_status s = k_init(NULL, err);
    if (!s) s = src_open(&src, c->argv[0], &(src_opts){ .need_config = true }, err);
    if (s) return s;
    load_say_notes(c->argv[0], src);
    s = output_check_place("--out", o->out, false, src, c->argv[0], err);
    if (!s) s = output_check_ending("--out", o->out, "gguf", false, err);
    if (!s) s = pool_open(&p, c->threads, err);
    if (!s) s = carried_tok_open(&tok, src, true, err);
    const dataset_opts mix = { src, tok.tok, o->samples, quantize_len(c, o->len, src),
                               (uint64_t)o->seed };
    if (!s) s = quantize_samples(&samples, o->calib, &mix, QUANTIZE_WINDOWS, err);
    if (!s) s = collect(&sum, src, &samples, p, c->job, err);
    prog_end();
    if (!s) s = imatrix_write(o->out, sum.e, sum.n, o->calib, samples.n, samples.len, err);
    if (!s && c->json) {
        cJSON *j = cJSON_CreateObject();
        cJSON_AddStringToObject(j, "out", o->out);
        cJSON_AddNumberToObject(j, "weights", (double)sum.n);
        cJSON_AddNumberToObject(j, "tokens", (double)(samples.n * samples.len));
        s = cmd_give_json(c, j, err);
    } else if (!s) {
        printf("%s: inputs of %zu weights over %lld tokens\n", o->out, sum.n,
               (long long)(samples.n * samples.len));
    }
    lq_arena_free(&sum.arena);
    cal_samples_free(&samples);
    carried_tok_close(&tok);
    pool_close(p);
    src_close(src);
    return s;
}

const cmd_row cmd_imatrix = {
    .name = "imatrix",
    .summary = "mean squares of every weight's inputs, for llama-quantize and quantize --imatrix",
    .details =
        "Runs text through the model and writes what llama-imatrix would: of every linear layer's "
        "weight the sum of the squares of each input, and the number of tokens (of experts, of "
        "those that were sent to each).",
    .args = { { "MODEL", 1, 1, OPT_MODEL_HELP, FILES_MODEL } },
    .groups = { OPT_GROUP("Options", rows, 0) },
    .examples = "llmq imatrix models/novels-6m -o novels.imatrix.gguf --calib text.txt\0"
                "llmq quantize models/novels-6m -o m.gguf --to gguf:Q4_K_M -m rtn --imatrix "
                "novels.imatrix.gguf\0",
    .opts_bytes = sizeof(imatrix_cmd_opts),
    .run = imatrix_cmd_run,
};
