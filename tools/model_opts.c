/* tools/model_opts.c - options of the commands that run a model. */
#include "tools/model_opts.h"

#include "kernels/dev.h"
#include "tools/progress.h"

/* Index 0 is auto; the others are one more than mm_acts and kv_dtype. */
static const char *const acts_words[] = { "auto", "f32", "bf16", "int8", NULL };
static const char *const kv_words[] = { "auto", "f32", "f16", "bf16", "int8", "int4", "fp8", NULL };

#define F(field) offsetof(opt_model, field)
#define ROWS(acts, kv_def)                                                                         \
    {                                                                                              \
        { "kernels",                                                                               \
          0,                                                                                       \
          OPT_STR,                                                                                 \
          F(kernels),                                                                              \
          .arg = "NAME",                                                                           \
          .help = "kernels to use instead of the best for this CPU (`llmq version` lists them)" }, \
            { "device",                                                                            \
              0,                                                                                   \
              OPT_STR,                                                                             \
              F(device),                                                                           \
              .def = "auto",                                                                       \
              .arg = "NAME",                                                                       \
              .help = "where to run: cpu or auto; cuda[:i] says what is missing" },                \
            { "activations",                                                                       \
              0,                                                                                   \
              OPT_ENUM,                                                                            \
              F(activations),                                                                      \
              .def = acts,                                                                         \
              .words = acts_words,                                                                 \
              .help = "arithmetic of the inputs of quantized layers" },                            \
            { "kv-cache-dtype",                                                                    \
              0,                                                                                   \
              OPT_ENUM,                                                                            \
              F(kv),                                                                               \
              .def = kv_def,                                                                       \
              .words = kv_words,                                                                   \
              .help = "how keys and values are kept" },                                            \
            { "verify", 0, OPT_FLAG, F(verify),                                                    \
              .help = "check every checksum of a .llmq file before it is used" },                  \
    }

const opt_row opt_model_rows[OPT_MODEL_N] = ROWS("auto", "auto");
const opt_row opt_model_exact_rows[OPT_MODEL_N] = ROWS("f32", "f32");

const char *mm_acts_text(mm_acts a) { return acts_words[a + 1]; }

mm_acts opt_acts(const opt_model *o)
{
    return o->activations ? (mm_acts)(o->activations - 1) : MM_I8;
}

kv_dtype opt_kv(const opt_model *o) { return o->kv ? (kv_dtype)(o->kv - 1) : KV_F16; }

/* The kernels of a GPU are here and tested, the pass over a model on them is not (docs/design/
 * 0006-cuda.md): a GPU that is asked for is refused, with what is missing first. */
lq_status opt_check_device(const opt_model *o, lq_err *err)
{
    dev d;
    if (!o->device || strcmp(o->device, "auto") == 0 || strcmp(o->device, "cpu") == 0) return LQ_OK;
    lq_status s = dev_open(&d, o->device, err);
    if (s) return lq_wrap(err, s, "--device");
    s = lq_fail(err, LQ_EUNSUPPORTED, "--device: expected cpu or auto: models do not run on %s yet",
                d.name);
    d.ops->close(&d);
    return s;
}

void opt_note_device(const cmd_ctx *c, const opt_model *o)
{
    lq_err why = { "" };
    if (!opt_given(c, "device") || strcmp(o->device, "auto") != 0) return;
    prog_say(LOG_INFO, "device: cpu (%s)",
             dev_count(&why) ? "models do not run on a GPU yet" : why.msg);
}
