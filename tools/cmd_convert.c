/* tools/cmd_convert.c - `llmq convert SRC -o DST --to T`. */
#include "convert/convert.h"
#include "runtime/tok.h"
#include "runtime/tok_files.h"
#include "tools/cmds.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

typedef struct {
    const char *out, *to;
    int dtype, layout;
    size_t shard_size;
} convert_opts;

static const char *const dtypes[] = { "auto", "f32", "f16", "bf16", NULL };
static const char *const layouts[] = { "portable", "tile16", NULL };

#define F(field) offsetof(convert_opts, field)
static const opt_row rows[] = {
    { "out", 'o', OPT_STR, F(out), .arg = "DST", .required = true,
      .help = "file (llmq) or folder (safetensors) to write" },
    { "to", 0, OPT_STR, F(to), .arg = "FORMAT", .required = true, .help = "llmq or safetensors" },
    { "dtype", 0, OPT_ENUM, F(dtype), .def = "auto", .words = dtypes,
      .help = "safetensors: type of the floats; auto: as stored, quantized weights as the "
              "checkpoint's" },
    { "layout", 0, OPT_ENUM, F(layout), .def = "portable", .words = layouts,
      .help = "llmq: tile16 is what the CPU kernels read, mapped without a copy" },
    { "shard-size", 0, OPT_SIZE, F(shard_size), .def = "5G",
      .help = "safetensors: bytes per file at most; 0: one file" },
};

/* A .llmq carries the tokenizer compiled; one that we cannot compile goes as it is. */
static void compile_tokenizer(uint8_t **blob, size_t *bytes, const src_source *src)
{
    lq_err err;
    *blob = NULL;
    if (src_find_blob(src, "tokenizer.blob")) return;
    lq_status s = tok_compile_source(blob, bytes, src, &err);
    if (s && s != LQ_ENOENT) {
        prog_say(LOG_WARN, "%s; the result carries it uncompiled", err.msg);
    }
}

static lq_status to_llmq(conv_report *r, const src_source *src, const convert_opts *o,
                         const cmd_ctx *c, lq_err *err)
{
    uint8_t *blob = NULL;
    size_t bytes = 0;
    pool *p = NULL;
    lq_status s = pool_open(&p, c->threads, err);
    if (s) return s;
    compile_tokenizer(&blob, &bytes, src);
    conv_llmq_opts opts = { o->layout ? QT_TILE16 : QT_PORTABLE, blob, bytes };
    s = conv_to_llmq(r, src, o->out, &opts, p, c->job, err);
    free(blob);
    pool_close(p);
    return s;
}

static lq_status to_safetensors(conv_report *r, const src_source *src, const convert_opts *o,
                                const cmd_ctx *c, lq_err *err)
{
    static const lq_dtype types[] = { LQ_F32, LQ_F32, LQ_F16, LQ_BF16 };
    conv_hf_opts opts = { o->dtype == 0, types[o->dtype], o->shard_size };
    return conv_to_hf(r, src, o->out, &opts, c->job, err);
}

static const struct {
    const char *name, *other, *other2; /* options of the other targets */
    lq_status (*run)(conv_report *r, const src_source *src, const convert_opts *o, const cmd_ctx *c,
                     lq_err *err);
} targets[] = { { "llmq", "dtype", "shard-size", to_llmq },
                { "safetensors", "layout", "layout", to_safetensors } };

static lq_status run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const convert_opts *o = opts;
    size_t t = 0;
    while (t < LQ_COUNT(targets) && strcmp(targets[t].name, o->to) != 0)
        t++;
    if (t == LQ_COUNT(targets))
        return lq_fail(err, LQ_EUSAGE, "--to: expected llmq or safetensors, found '%s'", o->to);
    const char *other = opt_given(c, targets[t].other)    ? targets[t].other
                        : opt_given(c, targets[t].other2) ? targets[t].other2
                                                          : NULL;
    if (other) return lq_fail(err, LQ_EUSAGE, "--%s does not go with --to %s", other, o->to);
    if (lq_same_file(c->argv[0], o->out))
        return lq_fail(err, LQ_EUSAGE, "--out: expected another place than the source, found '%s'",
                       o->out);
    src_source *src = NULL;
    conv_report r;
    lq_status s = k_init(NULL, err);
    if (!s) s = src_open(&src, c->argv[0], &(src_opts){ .need_config = true }, err);
    if (s) return s;
    s = src_check_roles(src, err);
    if (!s) s = targets[t].run(&r, src, o, c, err);
    src_close(src);
    if (s) return s;
    prog_end();
    if (!c->json) {
        char size[16];
        printf("%s: %lld tensors, %s, %s\n", o->out, (long long)r.tensors,
               opt_size_text(size, sizeof size, (double)r.bytes),
               r.bit_exact ? "every weight has the source's value"
                           : "values were rounded to the type of the result");
        return LQ_OK;
    }
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddStringToObject(doc, "out", o->out);
    cJSON_AddStringToObject(doc, "to", o->to);
    cJSON_AddBoolToObject(doc, "bit_exact", r.bit_exact);
    cJSON_AddNumberToObject(doc, "tensors", (double)r.tensors);
    cJSON_AddNumberToObject(doc, "bytes", (double)r.bytes);
    return cmd_print_json(doc, err);
}

const cmd_row cmd_convert = {
    .name = "convert",
    .summary = "write a model in another format, with the values it has",
    .args = { { "SRC", 1, 1, "Hugging Face folder or .llmq file" } },
    .groups = { OPT_GROUP("Options", rows, 0) },
    .examples = "llmq convert models/novels-6m -o novels.llmq --to llmq --layout tile16\0"
                "llmq convert awq4.llmq -o awq4-f32 --to safetensors --dtype f32\0",
    .opts_bytes = sizeof(convert_opts),
    .run = run,
};
