/* tools/cli/model_opts.c - options of the commands that run a model. */
#include "tools/cli/model_opts.h"

#include "kernels/device.h"
#include "runtime/model/model.h"
#include "tools/cli/host.h"
#include "tools/cli/progress.h"

#include <stdlib.h>

/* Index 0 is auto; the others are one more than mm_acts and kv_dtype. */
static const char *const acts_words[] = { "auto", "f32", "bf16", "int8", NULL };
static const char *const kv_words[] = { "auto", "f32", "f16", "bf16", "int8", "int4", "fp8", NULL };

static const char *const numa_words[] = { "off", "interleave", NULL };

/* BY_DEVICE: nobody asked for any; all where --device names a GPU. */
enum { LAYERS_ALL = -1, LAYERS_AUTO = -2, LAYERS_BY_DEVICE = -3 };
static const char *const layer_words[] = { "all", "auto", "device", NULL };

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
              .arg = "NAME",                                                                       \
              .help = "where to run: cpu (default), cuda, cuda:i, or auto (the first GPU where "   \
                      "the model runs and fits)" },                                                \
            { "gpu-layers",                                                                        \
              0,                                                                                   \
              OPT_INT,                                                                             \
              F(gpu_layers),                                                                       \
              .def = "device",                                                                     \
              .hi = 1 << 20,                                                                       \
              .words = layer_words,                                                                \
              .help =                                                                              \
                  "number of layers on the GPU (the last N and the head; the others run on the "   \
                  "CPU); auto: as many as fit with their cache; both, and all, imply --device "    \
                  "cuda; device: all of them if --device names one" },                             \
            { "tensor-parallel-size",                                                              \
              0,                                                                                   \
              OPT_INT,                                                                             \
              F(ranks),                                                                            \
              .def = "1",                                                                          \
              .lo = 1,                                                                             \
              .hi = DEV_RANKS,                                                                     \
              .help = "number of GPUs that share every layer, from the named one or cuda:0 on, "   \
                      "over NCCL "                                                                 \
                      "(emulated, "                                                                \
                      "not yet measured on any)" },                                                \
            { "enforce-eager", 0, OPT_FLAG, F(eager),                                              \
              .help = "on a GPU, launch each operation of a step by itself: no CUDA graphs" },     \
            { "batch-invariant", 0, OPT_FLAG, F(batch_invariant),                                  \
              .help =                                                                              \
                  "on a GPU, the same bytes at any load, at some cost (always so on the CPU)" },   \
            { "activations",                                                                       \
              0,                                                                                   \
              OPT_ENUM,                                                                            \
              F(activations),                                                                      \
              .def = acts,                                                                         \
              .words = acts_words,                                                                 \
              .help = "activation dtype of quantized layers (auto: int8; on a GPU bf16)" },        \
            { "kv-cache-dtype",                                                                    \
              0,                                                                                   \
              OPT_STR,                                                                             \
              F(kv),                                                                               \
              .def = kv_def,                                                                       \
              .words = kv_words,                                                                   \
              .help = "dtype of keys and values (auto: bf16 where attention multiplies "           \
                      "that, else f16; on a GPU f16), or of each: k=int8,v=int4" },                \
            { "verify", 0, OPT_FLAG, F(verify),                                                    \
              .help = "check every checksum of a .llmq file before it is used" },                  \
            { "pin", 0, OPT_FLAG, F(pin),                                                          \
              .help = "bind each thread to a CPU, one of each physical core first" },              \
            { "numa",                                                                              \
              0,                                                                                   \
              OPT_ENUM,                                                                            \
              F(numa),                                                                             \
              .def = "off",                                                                        \
              .words = numa_words,                                                                 \
              .help = "interleave: spread memory and threads over all nodes of the machine" },     \
            { "rope-scaling",                                                                      \
              0,                                                                                   \
              OPT_STR,                                                                             \
              F(rope),                                                                             \
              .arg = "KIND,F",                                                                     \
              .help = "yarn,F or linear,F: scale positions, for a context F times the model's" },  \
            { "tokenizer",                                                                         \
              0,                                                                                   \
              OPT_STR,                                                                             \
              F(tokenizer),                                                                        \
              .arg = "FOLDER",                                                                     \
              .files = FILES_TEXT,                                                                 \
              .help = OPT_TOKENIZER_HELP },                                                        \
    }

const opt_row opt_model_rows[OPT_MODEL_N] = ROWS("auto", "auto");
const opt_row opt_model_exact_rows[OPT_MODEL_N] = ROWS("f32", "f32");

const char *mm_acts_text(mm_acts a) { return acts_words[a + 1]; }

mm_acts opt_acts(const opt_model *o)
{
    return o->activations ? (mm_acts)(o->activations - 1) : MM_I8;
}

static bool is(const char *word, const char *other) { return strcmp(word, other) == 0; }

/* What --device says, or --gpu-layers without it. */
const char *opt_device(const opt_model *o)
{
    const char *word = o->device ? o->device : "auto";
    if (o->gpu_layers == 0 && (is(word, "auto") || strncmp(word, "cuda", 4) == 0)) return "cpu";
    return o->device                                           ? o->device
           : o->gpu_layers == LAYERS_BY_DEVICE && o->ranks < 2 ? "cpu"
                                                               : "cuda";
}

/* The n bytes at s as an index of kv_words; -1: none. */
static int kv_word(const char *s, size_t n)
{
    for (int i = 0; kv_words[i]; i++)
        if (strlen(kv_words[i]) == n && strncmp(kv_words[i], s, n) == 0) return i;
    return -1;
}

/* Indices of kv_words of K and V: one word for both, or k=WORD and v=WORD, of which one may be left to
 * auto. */
static bool read_kv(const char *s, int *k, int *v)
{
    int found[2] = { -1, -1 };
    *k = *v = s ? kv_word(s, strlen(s)) : 0;
    if (*k >= 0) return true;
    while (*s) {
        const size_t n = strcspn(s, ",");
        if (n < 2 || (*s != 'k' && *s != 'v') || s[1] != '=') return false;
        int *one = &found[*s == 'v'];
        if (*one >= 0 || (*one = kv_word(s + 2, n - 2)) < 0) return false;
        s += n;
        if (*s == ',' && !*++s) return false;
    }
    *k = found[0] < 0 ? 0 : found[0];
    *v = found[1] < 0 ? 0 : found[1];
    return found[0] >= 0 || found[1] >= 0;
}

lq_status opt_check_kv(const opt_model *o, lq_err *err)
{
    int k, v;
    if (read_kv(o->kv, &k, &v)) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE,
                   "--kv-cache-dtype: expected auto, f32, f16, bf16, int8, int4, fp8, or k=... and "
                   "v=... of them with a comma between, found %s",
                   o->kv);
}

kv_types opt_kv(const opt_model *o)
{
    int k = 0, v = 0;
    if (!read_kv(o->kv, &k, &v)) k = v = 0; /* opt_model_start refuses it */
    const kv_dtype fast = attn_fast_cache(opt_acts(o) != MM_F32 && is(opt_device(o), "cpu"));
    return kv_apart(k ? (kv_dtype)(k - 1) : fast, v ? (kv_dtype)(v - 1) : fast);
}

int64_t opt_gpu_layers(const opt_model *o)
{
    if (o->gpu_layers == LAYERS_ALL || o->gpu_layers == LAYERS_BY_DEVICE) return MODEL_ALL_LAYERS;
    return o->gpu_layers == LAYERS_AUTO ? MODEL_AUTO_LAYERS : o->gpu_layers;
}

bool opt_int8(const opt_model *o) { return o->activations == MM_I8 + 1; }

lq_status opt_check_device(const opt_model *o, lq_err *err)
{
    dev d;
    if (o->device && is(o->device, "cpu") && o->gpu_layers != LAYERS_BY_DEVICE &&
        o->gpu_layers != 0)
        return lq_fail(err, LQ_EUSAGE, "--gpu-layers: expected --device cuda or auto, found cpu");
    if (o->ranks > 1 && opt_gpu_layers(o) != MODEL_ALL_LAYERS)
        return lq_fail(err, LQ_EUSAGE, "--tensor-parallel-size goes without --gpu-layers");
    if (o->ranks > 1 && is(opt_device(o), "cpu"))
        return lq_fail(err, LQ_EUSAGE,
                       "--tensor-parallel-size: expected --device cuda or auto, found cpu");
    if (is(opt_device(o), "auto") || is(opt_device(o), "cpu")) return LQ_OK;
    lq_status s = dev_open(&d, opt_device(o), err);
    if (s) return lq_wrap(err, s, "--device");
    d.ops->close(&d);
    return LQ_OK;
}

lq_status opt_open_gpus(int *n, const opt_model *o, lq_err *err)
{
    dev d;
    lq_err later; /* loading says it */
    *n = 0;
    lq_status s = opt_check_device(o, err);
    if (s || !opt_may_leave_cpu(o)) return s;
    *n = o->ranks > 1 ? (int)o->ranks : 1;
    s = dev_open(&d, is(opt_device(o), "auto") ? "cuda" : opt_device(o), &later);
    for (int r = 1; !s; r++) {
        const dev_ops *ops = d.ops;
        const int next = d.index + 1;
        ops->close(&d);
        if (r == *n) break;
        s = ops->open(&d, next, &later);
    }
    dev_cuda()->libraries(*n);
    return LQ_OK;
}

bool opt_may_leave_cpu(const opt_model *o)
{
    lq_err ignored;
    return !is(opt_device(o), "cpu") && dev_count(&ignored) > 0;
}

lq_status opt_only_cpu(const opt_model *o, const char *what, lq_err *err)
{
    if (strncmp(opt_device(o), "cuda", 4) != 0) return opt_check_device(o, err);
    return lq_fail(err, LQ_EUNSUPPORTED, "--device: not on cuda yet: %s", what);
}

/* CUDA reads the list up to what is no number or UUID: "", "-1", "NoDevFiles" name none. */
static bool hides_gpus(void)
{
    const char *seen = getenv("CUDA_VISIBLE_DEVICES");
    return seen && strspn(seen, "0123456789GM") == 0;
}

void opt_note_device(const opt_model *o)
{
    lq_err why = { "" };
    if (o->gpu_layers == 0 && (!o->device || !is(o->device, "cpu"))) {
        prog_say(LOG_INFO, "device: cpu (--gpu-layers 0)");
    } else if (!o->device && is(opt_device(o), "cpu") && host_gpu_node() && !hides_gpus()) {
        const char *built = dev_not_built();
        prog_say(LOG_INFO, "device: cpu (the GPU that is here is not used: %s)",
                 built ? built : "--device cuda or auto asks for it");
    } else if (is(opt_device(o), "auto") && dev_count(&why) == 0) {
        prog_say(host_gpu() ? LOG_WARN : LOG_INFO, "device: cpu (%s)", why.msg);
    }
}
