/* tools/cmd_convert.c - `llmq convert SRC -o DST --to T`. */
#include "base/hash.h"
#include "base/json.h"
#include "base/version.h"
#include "convert/convert.h"
#include "formats/source/adapter.h"
#include "runtime/tokenizer/tok.h"
#include "runtime/tokenizer/tok_files.h"
#include "tools/cli/load.h"
#include "tools/cli/model_opts.h"
#include "tools/cli/outputs.h"
#include "tools/cli/shard.h"
#include "tools/cmds.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

typedef struct {
    const char *out, *to;
    int dtype, layout;
    size_t shard_size;
    bool requantize;
    const char *tokenizer, *merge, *shard;
} convert_opts;

static const char *const dtypes[] = { "auto", "f32", "f16", "bf16", NULL };
static const char *const layouts[] = { "portable", "tile16", NULL };

#define F(field) offsetof(convert_opts, field)
static const opt_row rows[] = {
    { "out", 'o', OPT_STR, F(out), .arg = "DST", .required = true,
      .help = "file (llmq, gguf) or folder (all others) to write" },
    { "to", 0, OPT_STR, F(to), .arg = "FORMAT", .required = true,
      .help = "llmq, safetensors (floats), gguf, or a published layout" },
    { "dtype", 0, OPT_ENUM, F(dtype), .def = "auto", .words = dtypes,
      .help = "folders: type of the floats; gguf: of every matrix, dequantized where it has codes; "
              "auto: as stored, dequantized weights as the checkpoint's" },
    { "layout", 0, OPT_ENUM, F(layout), .def = "portable", .words = layouts,
      .help =
          "llmq: tile16, 16 rows interleaved, is what the kernels read, mapped without a copy" },
    { "shard-size", 0, OPT_SIZE, F(shard_size), .def = "5G",
      .help = "folders: bytes per file at most; 0: one file" },
    { "allow-requantize", 0, OPT_FLAG, F(requantize),
      .help = "quantized formats: round to nearest what the format cannot hold, instead of "
              "refusing it" },
    { "tokenizer", 0, OPT_STR, F(tokenizer), .arg = "FOLDER", .files = FILES_TEXT,
      .help = OPT_TOKENIZER_HELP },
    { "merge-lora", 0, OPT_STR, F(merge), .arg = "PATH", .files = FILES_TEXT,
      .help = "add a LoRA or DoRA adapter (a folder of PEFT's, or a GGUF adapter) to the weights, "
              "which are floats" },
    { "shard", 0, OPT_STR, F(shard), .arg = "i/N",
      .help = "only the i-th of N shares (i from 1; auto: SLURM_ARRAY_TASK_ID of _COUNT; N alone: "
              "JOB_COMPLETION_INDEX says which), into DST.resume; the same command without it then "
              "writes DST" },
};

/* A .llmq carries the tokenizer compiled; one that we do not know goes as it is. A malformed one
 * is refused whatever the target: nobody could read the result's. */
static lq_status compile_tokenizer(uint8_t **blob, size_t *bytes, const src_source *src, bool aloud,
                                   lq_err *err)
{
    *blob = NULL;
    if (src_find_blob(src, "tokenizer.blob")) return LQ_OK;
    const lq_status s = tok_compile_source(blob, bytes, src, err);
    if (s == LQ_EUNSUPPORTED && aloud)
        prog_say(LOG_WARN, "%s; the result carries it uncompiled", err->msg);
    return s == LQ_EUNSUPPORTED || s == LQ_ENOENT ? LQ_OK : lq_wrap(err, s, "%s", src_path(src));
}

static lq_status check_tokenizer(const src_source *src, lq_err *err)
{
    uint8_t *blob;
    size_t bytes;
    const lq_status s = compile_tokenizer(&blob, &bytes, src, false, err);
    free(blob);
    return s;
}

static lq_status to_llmq(conv_report *r, src_source *src, const convert_opts *o, conv_share share,
                         const cmd_ctx *c, lq_err *err)
{
    uint8_t *blob = NULL;
    size_t bytes = 0;
    pool *p = NULL;
    lq_status s = compile_tokenizer(&blob, &bytes, src, true, err);
    if (!s) s = pool_open(&p, c->threads, err);
    const conv_llmq_opts opts = { o->layout ? QT_TILE16 : QT_PORTABLE, blob, bytes, share };
    if (!s) s = conv_to_llmq(r, src, o->out, &opts, p, c->job, err);
    free(blob);
    pool_close(p);
    return s;
}

static const lq_dtype types[] = { LQ_F32, LQ_F32, LQ_F16, LQ_BF16 }; /* of --dtype */

static lq_status to_folder(conv_report *r, src_source *src, const convert_opts *o, conv_share share,
                           const cmd_ctx *c, lq_err *err)
{
    conv_hf_opts opts = { .to = o->to,
                          .keep_dtype = o->dtype == 0,
                          .dtype = types[o->dtype],
                          .shard_size = o->shard_size,
                          .requantize = o->requantize,
                          .share = share };
    pool *p = NULL;
    lq_status s = pool_open(&p, c->threads, err);
    if (!s) s = conv_to_hf(r, src, o->out, &opts, p, c->job, err);
    pool_close(p);
    return s;
}

static lq_status to_gguf(conv_report *r, src_source *src, const convert_opts *o, conv_share share,
                         const cmd_ctx *c, lq_err *err)
{
    const conv_gguf_opts opts = { o->dtype == 0, types[o->dtype], o->requantize, share };
    pool *p = NULL;
    lq_status s = pool_open(&p, c->threads, err);
    if (!s) s = conv_to_gguf(r, src, o->out, &opts, p, c->job, err);
    pool_close(p);
    return s;
}

typedef struct {
    const char *name;      /* NULL: any layout of convert/layouts/layout.h */
    bool folder;           /* the result is one */
    const char *others[3]; /* options of the other targets */
    lq_status (*run)(conv_report *r, src_source *src, const convert_opts *o, conv_share share,
                     const cmd_ctx *c, lq_err *err);
} target;
static const target targets[] = {
    { "llmq", false, { "dtype", "shard-size", "allow-requantize" }, to_llmq },
    { "safetensors", true, { "layout", "allow-requantize" }, to_folder },
    { "gguf", false, { "layout", "shard-size" }, to_gguf },
    { NULL, true, { "layout" }, to_folder },
};

/* The row of --to, or NULL and every name there is in err. */
static lq_status find_target(const target **t, const char *to, lq_err *err)
{
    char names[200] = "";
    size_t at = 0;
    for (*t = targets; (*t)->name; ++*t) {
        if (strcmp((*t)->name, to) == 0) return LQ_OK;
        at += (size_t)snprintf(names + at, sizeof names - at, "%s, ", (*t)->name);
    }
    const char *name;
    for (size_t i = 0; (name = conv_layout_at(i)); i++) {
        if (strcmp(name, to) == 0) return LQ_OK;
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", name,
                               conv_layout_at(i + 1) ? ", " : "");
    }
    return lq_fail(err, LQ_EUSAGE, "--to: expected one of %s; found '%s'", names, to);
}

/* *src becomes the merged model, and *base what it was; both are closed together. */
static lq_status merge(src_source **src, src_source **base, adp_adapter *a, const convert_opts *o,
                       lq_err *err)
{
    lq_status s = adp_open(a, o->merge, *src, err);
    src_source *own = NULL;
    if (!s) {
        s = src_merge(&own, *src, a, o->dtype != 0, err);
        if (s) lq_wrap(err, s, "--merge-lora %s", o->merge);
    }
    if (s) return s;
    *base = *src;
    *src = own;
    return LQ_OK;
}

/* All that the result follows from, by the options' names. */
static lq_status describe(cJSON **what, const src_source *src, const convert_opts *o,
                          const adp_adapter *a, lq_err *err)
{
    char hex[33];
    lq_hash h;
    lq_status s = src_sample(&h, src, err);
    if (s) return s;
    cJSON *j = *what = cJSON_CreateObject();
    lq_hash_hex(hex, &h);
    cJSON_AddStringToObject(j, CONV_WHAT, LLMQ_VERSION);
    cJSON_AddStringToObject(j, "SRC", hex);
    cJSON_AddStringToObject(j, "--to", o->to);
    cJSON_AddStringToObject(j, "--dtype", dtypes[o->dtype]);
    cJSON_AddStringToObject(j, "--layout", layouts[o->layout]);
    cJSON_AddNumberToObject(j, "--shard-size", (double)o->shard_size);
    cJSON_AddBoolToObject(j, "--allow-requantize", o->requantize);
    if (o->tokenizer) cJSON_AddTrueToObject(j, "--tokenizer"); /* which one, SRC tells */
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)a->id);
    if (o->merge) cJSON_AddStringToObject(j, "--merge-lora", hex);
    return js_ran_out() ? lq_fail(err, LQ_ENOMEM, "out of memory") : LQ_OK;
}

/* A share, or all: with what shares have made of it. */
static lq_status run_share(conv_share *share, const target *t, conv_report *r, src_source *src,
                           const convert_opts *o, const adp_adapter *a, const cmd_ctx *c,
                           lq_err *err)
{
    cJSON *what = NULL;
    lq_status s = o->shard ? shard_read(&share->shard, &share->n, o->shard, err) : LQ_OK;
    if (!s && (share->n || conv_shares_there(o->out))) s = describe(&what, src, o, a, err);
    share->what = what;
    if (!s) s = t->run(r, src, o, *share, c, err);
    share->what = NULL;
    cJSON_Delete(what);
    return s;
}

static lq_status say_share(const conv_share *share, const convert_opts *o, const cmd_ctx *c,
                           lq_err *err)
{
    prog_say(LOG_INFO, "%s: share %d of %d is finished", o->out, share->shard + 1, share->n);
    if (!c->json) return LQ_OK;
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddStringToObject(doc, "out", o->out);
    cJSON_AddStringToObject(doc, "to", o->to);
    cJSON_AddNumberToObject(doc, "shard", share->shard + 1);
    cJSON_AddNumberToObject(doc, "shards", share->n);
    return cmd_give_json(c, doc, err);
}

static lq_status convert_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const convert_opts *o = opts;
    const target *t;
    lq_status s = find_target(&t, o->to, err);
    for (size_t i = 0; !s && i < LQ_COUNT(t->others); i++)
        if (t->others[i] && opt_given(c, t->others[i]))
            s = lq_fail(err, LQ_EUSAGE, "--%s does not go with --to %s", t->others[i], o->to);
    if (s) return s;
    src_source *src = NULL, *base = NULL;
    adp_adapter adapter = { 0 };
    conv_report r;
    s = k_init(NULL, err);
    if (!s)
        s = src_open(&src, c->argv[0],
                     &(src_opts){ .need_config = true, .tokenizer = o->tokenizer }, err);
    if (s) return s;
    s = output_check_place("--out", o->out, t->folder, src, c->argv[0], err);
    if (!s) s = output_check_ending("--out", o->out, o->to, t->folder, err);
    if (!s) s = src_check_roles(src, err);
    if (!s) load_say_notes(c->argv[0], src);
    if (!s && t->run != to_llmq) s = check_tokenizer(src, err);
    if (!s) s = src_verify(src, c->job, err); /* else damage would get fresh checksums */
    if (s == LQ_ECHECK) s = LQ_EFORMAT;       /* nobody asked for a check: the input is bad */
    if (!s && o->merge) s = merge(&src, &base, &adapter, o, err);
    conv_share share = { 0 };
    if (!s) s = run_share(&share, t, &r, src, o, &adapter, c, err);
    src_close(src);
    src_close(base);
    const size_t merged = adapter.n;
    adp_close(&adapter);
    if (s) return s;
    prog_end();
    if (share.n) return say_share(&share, o, c, err);
    for (int i = 0; i < r.n_notes; i++)
        prog_say(LOG_WARN, "note: %s", r.note[i]);
    if (!c->json) {
        char size[16], stored[40] = "";
        if (r.weights != r.tensors)
            snprintf(stored, sizeof stored, " stored as %lld", (long long)r.tensors);
        printf("%s: %lld tensors%s, %s, ", o->out, (long long)r.weights, stored,
               opt_size_text(size, sizeof size, (double)r.bytes));
        if (r.requantized)
            printf("%lld weights were quantized again\n", (long long)r.requantized);
        else
            printf("%s\n", r.bit_exact && !merged
                               ? "every weight has the source's value"
                               : "values were rounded to the type of the result");
        return LQ_OK;
    }
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddStringToObject(doc, "out", o->out);
    cJSON_AddStringToObject(doc, "to", o->to);
    cJSON_AddBoolToObject(doc, "bit_exact", r.bit_exact && !merged);
    if (o->merge) cJSON_AddNumberToObject(doc, "merged", (double)merged);
    cJSON_AddNumberToObject(doc, "requantized", (double)r.requantized);
    cJSON *notes = cJSON_AddArrayToObject(doc, "notes");
    for (int i = 0; i < r.n_notes; i++)
        cJSON_AddItemToArray(notes, cJSON_CreateString(r.note[i]));
    cJSON_AddNumberToObject(doc, "weights", (double)r.weights);
    cJSON_AddNumberToObject(doc, "tensors", (double)r.tensors);
    cJSON_AddNumberToObject(doc, "bytes", (double)r.bytes);
    return cmd_give_json(c, doc, err);
}

/* The layouts there are, for --help. */
static void layouts_note(char *text, size_t n, const opt_row *row)
{
    const char *name;
    size_t at = 0;
    for (size_t i = 0; strcmp(row->name, "to") == 0 && (name = conv_layout_at(i)) && at < n; i++)
        at += (size_t)snprintf(text + at, n - at, "%s%s", i ? ", " : "", name);
}

const cmd_row cmd_convert = {
    .name = "convert",
    .summary = "write a model in another format, with the codes and values it has",
    .args = { { "SRC", 1, 1, OPT_MODEL_HELP, FILES_MODEL } },
    .groups = { OPT_GROUP("Options", rows, 0) },
    .examples = "llmq convert models/novels-6m -o novels.llmq --to llmq --layout tile16\0"
                "llmq convert awq4.llmq -o awq4-f32 --to safetensors --dtype f32\0"
                "llmq convert gptq4.llmq -o gptq4-vllm --to gptq --shard-size 4G\0"
                "llmq convert models/novels-6m -o tuned --to safetensors --merge-lora adapter\0"
                "llmq convert awq4.llmq -o awq4.gguf --to gguf --shard 1/8\0",
    .note = layouts_note,
    .opts_bytes = sizeof(convert_opts),
    .run = convert_run,
};
