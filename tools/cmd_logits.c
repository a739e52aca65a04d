/* tools/cmd_logits.c - `llmq logits`: the logits of a model for given ids, as a tensor. */
#include "tools/cli/load.h"
#include "tools/cli/outputs.h"
#include "tools/inflight/inflight.h"

#include "base/file.h"
#include "base/json.h"
#include "formats/hf/safetensors.h"
#include "runtime/forward/whole.h"

#include <stdlib.h>

typedef struct {
    const char *ids, *ids_file, *out, *lora;
    opt_model model;
    inflight_opts inflight;
} logits_opts;

#define F(field) offsetof(logits_opts, field)
static const opt_row rows[] = {
    { "ids", 0, OPT_STR, F(ids), .arg = "1,2,3", .help = "token ids with commas between" },
    { "ids-file", 0, OPT_STR, F(ids_file), .arg = "FILE",
      .help = "file of token ids with commas or white space between" },
    { "out", 'o', OPT_STR, F(out), .arg = "FILE", .required = true,
      .help = "safetensors file to write" },
    { "lora", 0, OPT_STR, F(lora), .arg = "PATH", .help = OPT_LORA_HELP },
};

/* Ids and their logits. */
typedef struct {
    int32_t *ids;
    int64_t n, vocab;
    float *logits; /* [n, vocab] */
} answer;

/* White space becomes commas, several become one. */
static void join_words(char *s)
{
    char *to = s;
    for (const char *p = s; *p; p++) {
        bool blank = *p == ' ' || *p == '\n' || *p == '\r' || *p == '\t' || *p == ',';
        if (!blank)
            *to++ = *p;
        else if (to > s && to[-1] != ',')
            *to++ = ',';
    }
    if (to > s && to[-1] == ',') to--;
    *to = 0;
}

static lq_status read_ids(answer *a, const logits_opts *o, lq_err *err)
{
    if (!o->ids == !o->ids_file)
        return lq_fail(err, LQ_EUSAGE, "expected one of --ids and --ids-file");
    char *text = NULL;
    size_t bytes;
    int64_t *wide = NULL;
    lq_status s = LQ_OK;
    if (o->ids_file) s = lq_read_file(&text, &bytes, o->ids_file, (size_t)256 << 20, err);
    if (!s && text) join_words(text);
    if (!s)
        s = opt_parse_ints(text ? text : o->ids, text ? o->ids_file : "--ids", 0, INT32_MAX, &wide,
                           &a->n, err);
    if (s == LQ_EUSAGE && text) s = LQ_EFORMAT; /* a bad file, not a bad command line */
    if (!s) {
        a->ids = malloc((size_t)a->n * sizeof *a->ids);
        if (!a->ids) s = lq_fail(err, LQ_ENOMEM, "no memory for %lld ids", (long long)a->n);
    }
    for (int64_t i = 0; i < a->n && !s; i++)
        a->ids[i] = (int32_t)wide[i];
    free(wide);
    free(text);
    return s;
}

static load_beside beside_of(int64_t n, const opt_model *o)
{
    load_beside b = { .tokens = n, .exact = true, .whole = true };
    kv_opts kv;
    fwd_whole_size(&kv, &b.step, n, opt_acts(o), opt_kv(o));
    b.kv = kv.dtype;
    b.block_size = kv.block_size;
    return b;
}

static lq_status write_logits(const answer *a, const char *path, lq_err *err)
{
    st_tensor t = { .name = "logits",
                    .dtype = LQ_F32,
                    .n_dims = 2,
                    .shape = { a->n, a->vocab },
                    .data = (const uint8_t *)a->logits,
                    .bytes = (size_t)(a->n * a->vocab) * sizeof *a->logits };
    return st_write(path, &t, 1, err);
}

static lq_status logits_report(const cmd_ctx *c, const answer *a, const char *path, lq_err *err)
{
    if (!c->json) {
        printf("%s: logits of %lld tokens over a vocabulary of %lld\n", path, (long long)a->n,
               (long long)a->vocab);
        return LQ_OK;
    }
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddNumberToObject(doc, "vocab", (double)a->vocab);
    cJSON_AddNumberToObject(doc, "tokens", (double)a->n);
    cJSON_AddStringToObject(doc, "out", path);
    return cmd_print_json(doc, err);
}

static lq_status logits_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const logits_opts *o = opts;
    answer a = { 0 };
    load_model l = { 0 };
    lora_adapter *adapter = NULL;
    pool *p = NULL;
    bool over = false;
    lq_status s = load_ranks(&over, c, &o->model, c->argv[0], err);
    if (over) return s;
    if (!s) s = read_ids(&a, o, err);
    if (!s) s = load_start(&p, c, &o->model, err);
    load_opts how = load_opts_of(c, &o->model);
    how.beside = beside_of(a.n, &o->model);
    if (!s) s = load_model_open(&l, c->argv[0], &how, p, c, err);
    if (!s) s = output_check_place("--out", o->out, false, l.src, load_named(c, c->argv[0]), err);
    if (!s) s = output_check_kind("--out", o->out, "\"logits\"", "earlier logits", err);
    if (!s && o->lora) s = lora_open(&adapter, &l.m, o->lora, 0, p, err);
    a.vocab = s ? 0 : l.m.cfg->vocab;
    if (!s)
        s = fwd_whole(&a.logits, &l.m, adapter, a.ids, a.n, opt_acts(&o->model), opt_kv(&o->model),
                      p, c->job, err);
    if (!s) s = write_logits(&a, o->out, err);
    if (!s) s = logits_report(c, &a, o->out, err);
    lora_unref(adapter);
    load_model_close(&l);
    pool_close(p);
    free(a.ids);
    free(a.logits);
    return s;
}

const cmd_row cmd_logits = {
    .name = "logits",
    .summary = "logits of a model for given token ids, as a safetensors file",
    .details = "Writes the tensor `logits` (float32 [tokens, vocabulary]). Needs no tokenizer. "
               "Arithmetic is exact (f32) unless told otherwise; with the server's options the "
               "bytes are those that the server samples from.",
    .args = { { "MODEL", 1, 1, OPT_MODEL_HELP, FILES_MODEL } },
    .groups = { OPT_GROUP("Options", rows, 0),
                OPT_GROUP("Running the model", opt_model_exact_rows, F(model)),
                OPT_GROUP("Quantizing while loading", inflight_rows, F(inflight)) },
    .examples = "llmq logits models/novels-6m --ids 1,422,17 -o logits.safetensors\0"
                "llmq logits model.llmq --ids-file ids.txt -o logits.safetensors --json\0",
    .opts_bytes = sizeof(logits_opts),
    .run = logits_run,
    .processes = CMD_SHARED,
};
