/* tools/cmd_quantize.c - `llmq quantize SRC -o OUT.llmq --method M`. */
#include "base/clock.h"
#include "calib/backward.h"
#include "convert/convert.h"
#include "formats/gguf/imatrix.h"
#include "quantize/job/job.h"
#include "quantize/job/probe.h"
#include "quantize/methods/effort.h"
#include "quantize/methods/methods.h"
#include "quantize/transform/rotate.h"
#include "quantize/tune/tune.h"
#include "runtime/forward/forward.h"
#include "tools/bench/blas_core.h"
#include "tools/cli/carried_tok.h"
#include "tools/cli/html_page.h"
#include "tools/cli/load.h"
#include "tools/cli/outputs.h"
#include "tools/cli/ranks.h"
#include "tools/cli/shard.h"
#include "tools/cmds.h"
#include "tools/model_free/model_free.h"
#include "tools/quantize_to/quantize_to.h"
#include "tools/quantize_to/refine.h"
#include "tools/report/quantize_calib.h"
#include "tools/report/quantize_html.h"
#include "tools/report/quantize_methods.h"
#include "tools/report/quantize_stats.h"

#include <stdlib.h>

typedef struct {
    const char *out, *method, *report;
    int effort; /* of efforts */
    int64_t bits, group;
    bool sym, asym, narrow;
    opt_tri clip, act_order, static_groups, fold, match, check;
    double damp, outlier_threshold, outlier_share;
    int64_t tune;
    double bpw;
    opt_tri bpw_fused;
    bool dbl, all_experts;
    const char *calib, *imatrix;
    int64_t samples, self, len, seed;
    opt_list overrides, skips;
    const char *lm_head, *embed, *mtp, *kernels, *device;
    size_t memory_limit;
    opt_tri resume;
    bool stats_only;
    const char *shard;
    int64_t stats_parts;
    opt_list stats;
    bool dry_run, rotate, reproducible, list_methods;
    model_free_opts free;
    refine_opts refine;
} quantize_opts;

static const char *const efforts[] = { "fast", "standard", "best", NULL };

#define F(field) offsetof(quantize_opts, field)
static const opt_row main_rows[] = {
    { "out", 'o', OPT_STR, F(out), .arg = "OUT",
      .help = "where the result goes: a .llmq file, or what --to names" },
    { "to", 0, OPT_STR, F(free.to), .arg = "FORMAT",
      .help =
          "gguf:MIX, MIX a name that llama.cpp's users know (Q4_K_M, IQ4_XS, Q3_K_M, Q2_K, ...), "
          "which says the type of every tensor; a layout of `convert`: gptq, awq, "
          "compressed-tensors, ..., or compressed-tensors:nvfp4, :mxfp4, :fp8-block, :fp8-channel, "
          ":fp8-tensor; with --model-free compressed-tensors (default) or fp8" },
    { "refine", 0, OPT_FLAG, F(refine.on),
      .help = "SRC is a GGUF file that somebody quantized: choose its codes and scales again from "
              "the weights of --ref; types, size and metadata stay" },
    { "ref", 0, OPT_STR, F(refine.ref), .arg = "MODEL", .files = FILES_MODEL,
      .help = "--refine: the unquantized model that it was made of, a folder or a GGUF file" },
    { "method", 'm', OPT_STR, F(method), .arg = "M", .def = QZ_DEFAULT_METHOD,
      .help = "how weights are rounded" },
    { "list-methods", 0, OPT_FLAG, F(list_methods),
      .help = "print what the methods are, what they make and need, and nothing else" },
    { "effort", 0, OPT_ENUM, F(effort), .def = QZ_EFFORT_DEFAULT, .words = efforts,
      .help = "how much text is looked at and how long is trained; what it takes here is said "
              "before the work begins, and "
              "by --dry-run. With --tune or --self-samples alone: best" },
    { "bits", 'b', OPT_INT, F(bits), .def = "4", .lo = 2, .hi = 8,
      .help = "bits per weight: 2, 3, 4 or 8" },
    { "group-size", 'g', OPT_INT, F(group), .lo = -1, .hi = 1 << 24,
      .help = "weights that share a scale, or half of it and so on until it divides the row; -1: "
              "the whole row" },
    { "sym", 0, OPT_FLAG, F(sym), .help = "grids symmetric about zero, no zero points" },
    { "asym", 0, OPT_FLAG, F(asym), .help = "zero points (what grids have by default)" },
    { "narrow", 0, OPT_FLAG, F(narrow),
      .help = "with --sym: only positive scales, as GPTQ's own rule has it" },
    { "clip", 0, OPT_TRI, F(clip),
      .help = "draw in the ends of grids where that lowers the error" },
    { "double-quant", 0, OPT_FLAG, F(dbl), .help = "quantize the block scales too" },
    { "rotate", 0, OPT_FLAG, F(rotate),
      .help = "first rotate the hidden states by a Hadamard matrix of random signs (--seed; "
              "QuaRot-style): outliers spread, the function stays, nothing is added at run time" },
    { "bpw", 0, OPT_FLOAT, F(bpw), .lo = 1, .hi = 32, .arg = "X",
      .help =
          "instead of --bits and --group-size at most X bits per weight of the "
          "linear layers, shared out by what each tensor's rounding does to the answers; of the "
          "whole model with --embed auto or --lm-head auto, and with --to gguf, whose types of "
          "blocks are shared out" },
    { "bpw-fused", 0, OPT_TRI, F(bpw_fused),
      .help = "--bpw: one scheme for the parts of a fused layer (q, k, v; gate, up), which other "
              "runtimes ask for (default yes, with --to gguf no)" },
    { "outlier-threshold", 0, OPT_FLOAT, F(outlier_threshold), .def = "6", .lo = 0, .hi = 1e9,
      .help = "inputs whose activations reach it stay in bf16; 0: none do" },
    { "outlier-share", 0, OPT_FLOAT, F(outlier_share), .def = "0.06", .lo = 0, .hi = 1,
      .help = "... in this share of the tokens at least; 0: in any token" },
};
static const opt_row calib_rows[] = {
    { "calib", 0, OPT_STR, F(calib), .def = "builtin", .arg = "FILE[:WEIGHT],...|builtin",
      .help = "text to run through the model, of several "
              "files by weight; "
              "FILE.jsonl: a line each of {\"text\": ...}, {\"messages\": [...]} (by the model's "
              "chat template) or {\"ids\": [1, 2, ...]}; FILE.ids: token ids; '\\' before ',' or "
              "':' makes it part of a name" },
    { "imatrix", 0, OPT_STR, F(imatrix), .arg = "FILE",
      .help = "instead of text an importance matrix of `llmq imatrix` or llama-imatrix" },
    { "calib-samples", 0, OPT_INT, F(samples), .def = "128", .lo = 1, .hi = 1 << 20,
      .help = "windows of text; unasked 48 for models above 2^28 weights, and as --effort says, "
              "where there is one" },
    { "self-samples", 0, OPT_INT, F(self), .lo = 0, .hi = 1 << 20,
      .help = "windows that the model generates itself, which tuning learns from too (default: "
              "with --effort best three for each of the others where codes are trained, seven "
              "with --tune 400 or more; else 0)" },
    { "calib-len", 0, OPT_INT, F(len), .def = "512", .lo = 8, .hi = 1 << 20,
      .help = "tokens in each (unasked: at most the positions of SRC)" },
    { "seed", 0, OPT_INT, F(seed), .def = "0", .lo = 0, .hi = 9007199254740991.0,
      .help = "which windows are chosen, and which signs --rotate takes" },
    { "all-experts", 0, OPT_FLAG, F(all_experts),
      .help = "round every expert's gate and up by all tokens, not by those that are sent to it" },
    { "act-order", 0, OPT_TRI, F(act_order),
      .help = "round the inputs that carry most first (default yes)" },
    { "static-groups", 0, OPT_TRI, F(static_groups),
      .help = "choose all grids first, so that groups stay regular (default yes)" },
    { "damp", 0, OPT_FLOAT, F(damp), .def = "0.01", .lo = 1e-6, .hi = 1,
      .help = "added to the diagonal of X^T X, as a fraction of its mean" },
    { "tune", 0, OPT_INT, F(tune), .lo = 0, .hi = 1 << 20, .arg = "STEPS",
      .help = "then train scales and norms together towards the original's answers; 0: do not; "
              "otherwise as --effort says: with best 100, up to 1600 for small models" },
    { "fold", 0, OPT_TRI, F(fold),
      .help = "scale inputs by what they carry, folded into the layer before" },
    { "match", 0, OPT_TRI, F(match),
      .help = "let each layer make up for what quantizing changed in the layers before it" },
};
static const opt_row stats_rows[] = {
    { "stats-only", 0, OPT_FLAG, F(stats_only),
      .help = "write statistics of the unquantized model's inputs to OUT and nothing else, with "
              "the options of calibration "
              "that will quantize by them" },
    { "shard", 0, OPT_STR, F(shard), .arg = "i/N",
      .help = "only the i-th of N shares (i from 1; auto: SLURM_ARRAY_TASK_ID of _COUNT; N alone: "
              "JOB_COMPLETION_INDEX says which). Methods without calibration: of the layers, which "
              "the same command without it then "
              "puts into OUT. --stats-only: of the text, at most as many as parts" },
    { "stats-parts", 0, OPT_INT, F(stats_parts), .def = "16", .lo = 1, .hi = STATS_MOST_LEAVES,
      .help = "--stats-only: the text is cut into N parts, the same N for all shares; a file takes "
              "the more the more of them it has" },
    { "stats", 0, OPT_LIST, F(stats), .arg = "FILE",
      .help = "quantize by these statistics: of `llmq stats merge`, or of all shards one by one" },
};
static const opt_row which_rows[] = {
    { "override", 0, OPT_LIST, F(overrides), .arg = "'REGEX=scheme'",
      .help = "weights whose name matches take another scheme: u4-g64, u8-g128-asym, i8-row, nf4, "
              "f16, ...; the first match counts" },
    { "skip", 0, OPT_LIST, F(skips), .arg = "REGEX", .help = "weights to leave as they are" },
    { "lm-head", 0, OPT_STR, F(lm_head), .arg = "SCHEME",
      .help = "of the output head, or keep: as in the source; auto: as --bpw chooses "
              "(default: " QZ_OUTER ", as in the source with --to but gguf:MIX)" },
    { "embed", 0, OPT_STR, F(embed), .arg = "SCHEME", .help = "of the embedding, likewise" },
    { "mtp", 0, OPT_STR, F(mtp), .arg = "SCHEME",
      .help = "of the linears of the model's head for multi-token prediction, rounded to nearest "
              "(default: keep: as in the source)" },
};
static const opt_row run_rows[] = {
    { "memory-limit", 0, OPT_SIZE, F(memory_limit), .lo = 1, .hi = 1e15,
      .help = "cap the peak: calibration states go to disk, experts are processed a few at a time; "
              "a limit below the minimum is refused with the minimum" },
    { "resume", 0, OPT_TRI, F(resume),
      .help = "go on from the last finished layer (that is also the default), and leave a finished "
              "OUT alone; --no-resume: throw finished layers away" },
    { "dry-run", 0, OPT_FLAG, F(dry_run),
      .help = "print the scheme of every tensor, and how much memory and disk the run takes" },
    { "report", 0, OPT_STR, F(report), .arg = "FILE.html",
      .help = "also write a page of plots and tables: bits, losses, outliers, folding, experts" },
    { "check", 0, OPT_TRI, F(check),
      .help =
          "at the end measure KL divergence and perplexity against SRC on text that calibration "
          "did not see (default: the methods with calibration)" },
    { "reproducible", 0, OPT_FLAG, F(reproducible),
      .help =
          "calibrated methods: the same bytes on every x86 processor with AVX2, at some cost in "
          "time on those with AVX-512 (the others give them on any)" },
    { "kernels", 0, OPT_STR, F(kernels), .arg = "NAME", .help = "instruction set for calibration" },
    { "device", 0, OPT_STR, F(device), .def = "cpu", .arg = "cpu|cuda[:i]|auto",
      .help = "where calibration's products, attention and sums (X^T X) are made, those of auto's "
              "training, input scales are compared and rows are rounded with feedback; auto: the "
              "first GPU, else the CPU" },
};

static lq_status check_options(const cmd_ctx *c, const quantize_opts *o, lq_err *err)
{
    const lq_status s = qmethods_check(c, o->method, err);
    if (s) return s;
    if (!o->out && !o->dry_run) return lq_fail(err, LQ_EUSAGE, "--out is required");
    if (o->report && o->dry_run)
        return lq_fail(err, LQ_EUSAGE, "--report: --dry-run makes nothing to report");
    if (o->report && (!*o->report || strcmp(o->report, o->out) == 0))
        return lq_fail(err, LQ_EUSAGE, "--report: expected a file of its own, found '%s'",
                       o->report);
    if (o->sym && o->asym) return lq_fail(err, LQ_EUSAGE, "--sym and --asym exclude each other");
    const bool bpw = opt_given(c, "bpw");
    if (bpw && (opt_given(c, "bits") || opt_given(c, "group-size")))
        return lq_fail(err, LQ_EUSAGE, "--bpw chooses bits and groups: expected no --%s",
                       opt_given(c, "bits") ? "bits" : "group-size");
    if (!bpw && opt_given(c, "bpw-fused"))
        return lq_fail(err, LQ_EUSAGE, "--bpw-fused needs --bpw");
    if (!bpw && (qz_is_auto(o->lm_head) || qz_is_auto(o->embed)))
        return lq_fail(err, LQ_EUSAGE, "--%s auto needs --bpw",
                       qz_is_auto(o->embed) ? "embed" : "lm-head");
    if (o->imatrix && opt_given(c, "calib"))
        return lq_fail(err, LQ_EUSAGE, "--calib and --imatrix exclude each other");
    if (o->rotate && o->imatrix)
        return lq_fail(err, LQ_EUSAGE,
                       "--imatrix: it is of inputs that are not rotated: expected no --rotate");
    if (o->narrow && !o->sym) return lq_fail(err, LQ_EUSAGE, "--narrow needs --sym");
    if (o->reproducible && strcmp(o->device, "cpu") != 0)
        return lq_fail(err, LQ_EUSAGE,
                       "--reproducible: expected --device cpu, whose bytes it means, found %s",
                       o->device);
    return LQ_OK;
}

/* None of these beside a format that says every scheme. */
static lq_status refuse(const cmd_ctx *c, const char *const *names, size_t n, const char *what,
                        lq_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (opt_given(c, names[i]))
            return lq_fail(err, LQ_EUSAGE, "%s says every scheme: expected no --%s", what,
                           names[i]);
    return LQ_OK;
}

/* Blocks of GGUF whose types --bpw chooses: of the whole file, since embedding and head are blocks too. */
static void take_bpw(qz_opts *q, const cmd_ctx *c, const quantize_to *to)
{
    q->bpw_for = to->format;
    if (strcmp(to->format, "gguf") != 0) return;
    q->outer = NULL;
    if (!q->embed) q->embed = "auto";
    if (!q->lm_head) q->lm_head = "auto";
    if (!opt_given(c, "bpw-fused")) q->untied = true;
}

/* What --to says of schemes. */
static lq_status take_format(qz_opts *q, const cmd_ctx *c, const quantize_to *to, lq_err *err)
{
    static const char *const all[] = { "bpw",  "bits",   "group-size",   "sym",
                                       "asym", "narrow", "static-groups" };
    const bool gguf = strcmp(to->format, "gguf") == 0, bpw = q->bpw > 0;
    char what[80];
    lq_status s = LQ_OK;
    if (gguf && !to->mix && !bpw && !q->like)
        return lq_fail(err, LQ_EUSAGE,
                       "--out: a GGUF file is made by --to gguf:MIX, such as gguf:Q4_K_M, or by "
                       "--bpw X");
    snprintf(what, sizeof what, "--to %s", opt_given(c, "to") ? opt_value(c, "to") : "gguf");
    if (to->mix || to->scheme)
        s = refuse(c, all, LQ_COUNT(all), what, err);
    else if (gguf && bpw)
        s = refuse(c, all + 1, LQ_COUNT(all) - 1, what, err);
    if (s) return s;
    if ((to->mix || gguf) && !q->method->blocks)
        return lq_fail(err, LQ_EUSAGE,
                       "%s: expected a method that makes blocks (rtn, gptq, auto), found %s",
                       q->like ? "--refine" : what, q->method->name);
    q->mix = to->mix;
    q->scheme = to->scheme;
    if (bpw && strcmp(to->format, "llmq") != 0) take_bpw(q, c, to);
    return LQ_OK;
}

/* d.ops NULL: the CPU. */
static lq_status open_device(dev *d, const char *want, lq_err *err)
{
    lq_err none;
    *d = (dev){ 0 };
    if (strcmp(want, "cpu") == 0 || (strcmp(want, "auto") == 0 && dev_count(&none) == 0))
        return LQ_OK;
    const lq_status s = dev_open(d, strcmp(want, "auto") == 0 ? "cuda" : want, err);
    if (s) return lq_wrap(err, s, "--device");
    prog_say(LOG_INFO, "device: %s", d->name);
    return LQ_OK;
}

static lq_status read_options(qz_opts *q, const cmd_ctx *c, const quantize_opts *o,
                              const imatrix *importance, lq_err *err)
{
    lq_status s = qz_method_find(&q->method, o->method, err);
    if (!s) s = check_options(c, o, err);
    if (s) return s;
    if (o->bits != 2 && o->bits != 3 && o->bits != 4 && o->bits != 8)
        return lq_fail(err, LQ_EUSAGE, "--bits: expected 2, 3, 4 or 8, found %lld",
                       (long long)o->bits);
    q->bits = (int)o->bits;
    if (opt_given(c, "group-size") && o->group == 0)
        return lq_fail(err, LQ_EUSAGE,
                       "--group-size: expected -1 (the whole row) or 1 or more, found 0");
    q->group = o->group;
    if (o->free.to && qz_method_of_layout(o->free.to) == q->method && !q->group)
        q->group = q->method->layout_group;
    q->sym = o->sym;
    q->asym = o->asym;
    q->limits.narrow = o->narrow;
    q->limits.zero_from_one = o->free.to && conv_zero_from_one(o->free.to) && !o->sym;
    q->bpw = o->bpw;
    q->tune = (int)o->tune; /* settled once the model is known */
    q->imatrix = importance;
    q->importance = q->method->text_optional && opt_given(c, "calib");
    q->clip = opt_tri_or(o->clip, false);
    q->no_clip = !opt_tri_or(o->clip, qz_on_by_default(q, QZ_OPT_CLIP));
    q->no_act_order = !opt_tri_or(o->act_order, true);
    q->no_static_groups = !opt_tri_or(o->static_groups, true);
    q->no_fold = !opt_tri_or(o->fold, qz_on_by_default(q, QZ_OPT_FOLD));
    q->no_match = o->stats.n || !opt_tri_or(o->match, qz_on_by_default(q, QZ_OPT_MATCH));
    q->damp = o->damp;
    q->all_experts = o->all_experts;
    q->dbl = o->dbl;
    q->outlier_threshold = o->outlier_threshold > 0 ? o->outlier_threshold : -1;
    q->outlier_share = o->outlier_share > 0 ? o->outlier_share : -1;
    q->overrides = o->overrides.v;
    q->n_overrides = o->overrides.n;
    q->skips = o->skips.v;
    q->n_skips = o->skips.n;
    q->lm_head = o->lm_head;
    q->embed = o->embed;
    q->mtp = o->mtp;
    q->outer = o->free.to || o->refine.on ? NULL : QZ_OUTER;
    q->rotate = o->rotate;
    q->rotate_seed = (uint64_t)o->seed;
    q->untied = !opt_tri_or(o->bpw_fused, true);
    return LQ_OK;
}

/* Neither file may take the place of one that is read. */
static lq_status check_places(const quantize_opts *o, const quantize_to *to, const src_source *src,
                              const char *given, lq_err *err)
{
    lq_status s = LQ_OK;
    if (o->out) s = quantize_to_check(to, o->out, src, given, err);
    if (!s && o->out && to->like)
        s = output_check_place("--out", o->out, false, to->like, src_path(to->like), err);
    if (!s && o->report) s = output_check_place("--report", o->report, false, src, given, err);
    if (!s && o->report)
        s = output_check_kind("--report", o->report, "<!doctype html", "an HTML page", err);
    return s;
}

/* What else depends on the model. */
/* Effort, and what is asked for one by one. *windows: of text that are usual with it. */
static lq_status settle_tuning(qz_opts *q, int64_t *windows, const cmd_ctx *c, quantize_opts *o,
                               const src_source *src, lq_err *err)
{
    const bool own =
        !opt_given(c, "effort") && (opt_given(c, "tune") || opt_given(c, "self-samples"));
    const qz_effort *e = NULL;
    const lq_status s = qz_effort_find(&e, efforts[o->effort], err);
    if (s) return s;
    *windows = quantize_effort(q, own ? qz_effort_best() : e, src);
    if (opt_given(c, "effort") && !q->effort)
        return lq_fail(err, LQ_EUSAGE,
                       "--effort: layers of this kind have no backward pass to be tuned by, so it "
                       "would change "
                       "nothing");
    if (own) q->effort = NULL;
    if (!opt_given(c, "calib-samples")) o->samples = *windows;
    if (opt_given(c, "tune")) q->tune = (int)o->tune;
    if (o->self && !grad_covers(src_config(src)))
        return lq_fail(err, LQ_EUSAGE,
                       "--self-samples: only tuning learns from them, and layers of this kind have "
                       "no backward pass to be tuned by");
    if (o->self && !qz_tune_steps(q))
        return lq_fail(err, LQ_EUSAGE,
                       "--self-samples: only tuning learns from them; expected --tune STEPS");
    return LQ_OK;
}

/* Of a model that has no layer of that kind nothing is matched, and its recipe says so. */
static lq_status settle_match(qz_opts *q, const quantize_opts *o, const src_source *src,
                              lq_err *err)
{
    const arch_config *c = src_config(src);
    for (int64_t i = 0; i < c->layers; i++)
        if (fwd_has_points(c, i)) return LQ_OK;
    if (o->match == OPT_YES && qz_matches(q))
        return lq_fail(
            err, LQ_EUSAGE,
            "--match: expected layers of attention or a state, then an MLP or experts, found "
            "none in this model");
    q->no_match = true;
    return LQ_OK;
}

/* Another program's process stays what it is. */
static lq_status take_blas_core(const cmd_ctx *c, const quantize_opts *o, lq_err *err)
{
    if (!c->result) return blas_core_use(o->reproducible, err);
    return o->reproducible ? blas_core_is_common(err) : LQ_OK;
}

/* The one that was asked for, or that a layout holds; of a model of any architecture the first, which needs no
 * text. */
static const char *method_of(const cmd_ctx *c, const quantize_opts *o)
{
    const char *own = o->free.to ? quantize_to_method(o->free.to) : NULL;
    if (opt_given(c, "method")) return o->method;
    return own ? own : o->free.on ? qz_method_at(0)->name : o->method;
}

/* What one process does, on the CPU; name: the option that asks for it. */
static lq_status check_one(const char *name, const comm *ranks, const quantize_opts *o, lq_err *err)
{
    if (ranks)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "%s: expected one process, found %d ranks; LLMQ_MPI=none makes each process "
                       "one of its own",
                       name, comm_size(ranks));
    return strcmp(o->device, "cpu") == 0
               ? LQ_OK
               : lq_fail(err, LQ_EUNSUPPORTED, "%s: expected --device cpu, found %s", name,
                         o->device);
}

/* Ranks share what quantize/job/ does, on the CPU. */
static lq_status check_ranks(const comm *ranks, const quantize_opts *o, lq_err *err)
{
    if (!ranks) return LQ_OK;
    if (o->free.on)
        return lq_fail(err, LQ_EUNSUPPORTED, "--model-free: expected one process, found %d ranks",
                       comm_size(ranks));
    if (strcmp(o->device, "cpu") != 0)
        return lq_fail(err, LQ_EUNSUPPORTED, "--device: expected cpu with %d ranks, found %s",
                       comm_size(ranks), o->device);
    return LQ_OK;
}

/* Statistics in files are for methods that go by them, in one process. */
static lq_status check_stats(const quantize_opts *o, const qz_opts *q, const comm *ranks,
                             lq_err *err)
{
    const bool any = o->stats_only || o->stats.n;
    const char *name = o->stats_only ? "--stats-only" : "--stats";
    if (o->stats_parts != STATS_LEAVES && !o->stats_only)
        return lq_fail(err, LQ_EUSAGE, "--stats-parts needs --stats-only");
    if (o->stats_only && o->stats.n)
        return lq_fail(err, LQ_EUSAGE, "--stats-only and --stats exclude each other");
    if (any && (!qz_calibrated(q) || q->imatrix))
        return lq_fail(err, LQ_EUSAGE, "%s: expected a method that goes by text, found %s", name,
                       o->method);
    const lq_status one = any ? check_one(name, ranks, o, err) : LQ_OK;
    if (one) return one;
    if (any && o->match == OPT_YES)
        return lq_fail(err, LQ_EUSAGE, "--match: nothing goes through quantized layers with %s",
                       name);
    if (o->stats_only && o->report)
        return lq_fail(err, LQ_EUSAGE, "--report: --stats-only makes no model that it could be of");
    return output_check_own("--out", o->out, o->stats.v, o->stats.n, err);
}

/* A share of a method that needs no text goes into OUT.resume, as layers that are finished. */
static lq_status check_shard(const cmd_ctx *c, const quantize_opts *o, const qz_opts *q,
                             const comm *ranks, lq_err *err)
{
    static const char *const whole[] = { "report", "refine" };
    if (!o->shard || o->stats_only) return LQ_OK;
    if (qz_calibrated(q))
        return lq_fail(err, LQ_EUSAGE,
                       "--shard: expected --stats-only, or a method without calibration, found %s",
                       o->method);
    const lq_status one = check_one("--shard", ranks, o, err);
    if (one) return one;
    for (size_t i = 0; i < LQ_COUNT(whole); i++)
        if (opt_given(c, whole[i]))
            return lq_fail(err, LQ_EUSAGE, "--%s goes without --shard", whole[i]);
    if (o->check == OPT_YES) return lq_fail(err, LQ_EUSAGE, "--check goes without --shard");
    return o->resume == OPT_NO ? lq_fail(err, LQ_EUSAGE, "--no-resume goes without --shard")
                               : LQ_OK;
}

static cJSON *shard_json(const quantize_opts *o, const qz_job *j)
{
    cJSON *r = cJSON_CreateObject();
    cJSON_AddStringToObject(r, "out", o->out);
    cJSON_AddStringToObject(r, "method", o->method);
    cJSON_AddNumberToObject(r, "shard", j->shard + 1);
    cJSON_AddNumberToObject(r, "shards", j->n_shards);
    return r;
}

static lq_status run_model_free(const cmd_ctx *c, const quantize_opts *o, lq_err *err)
{
    qz_opts q = { 0 };
    comm *ranks;
    int threads;
    lq_status s = read_options(&q, c, o, NULL, err);
    if (!s) s = ranks_open(&ranks, &threads, c, err);
    if (!s) s = check_ranks(ranks, o, err);
    if (!s && o->imatrix)
        s = lq_fail(err, LQ_EUSAGE, "--imatrix: --model-free knows no names of GGUF");
    if (!s) s = k_init(o->kernels, err);
    const model_free_place where = { .out = o->out,
                                     .dry_run = o->dry_run,
                                     .resume = opt_tri_or(o->resume, false),
                                     .restart = !opt_tri_or(o->resume, true) };
    return s ? s : model_free_run(c, &o->free, &q, &where, err);
}

static lq_status quantize_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    quantize_opts own = *(const quantize_opts *)opts;
    const quantize_opts *o = &own;
    own.method = method_of(c, o);
    if (o->list_methods) return qmethods_list(c->json, err);
    if (!c->argc) return lq_fail(err, LQ_EUSAGE, "SRC is missing: %s", c->cmd->args[0].help);
    lq_status s = refine_check(c, &o->refine, err);
    if (!s) s = model_free_check(c, &o->free, err);
    if (s) return s;
    if (o->free.on && o->shard) return lq_fail(err, LQ_EUSAGE, "--shard goes without --model-free");
    if (o->free.on) return run_model_free(c, o, err);
    double start = lq_now();
    qz_opts q = { 0 };
    dev on = { 0 };
    quantize_to to;
    imatrix importance = { 0 };
    s = read_options(&q, c, o, o->imatrix ? &importance : NULL, err);
    if (!s) s = quantize_to_read(&to, o->refine.on ? "gguf" : o->free.to, o->out, err);
    if (!s && o->refine.on) s = refine_open(&q, c->argv[0], c, err);
    if (!s) s = take_format(&q, c, &to, err);
    if (!s && qz_calibrated(&q)) s = take_blas_core(c, o, err);
    if (!s) s = k_init(o->kernels, err);
    comm *ranks = NULL;
    int threads = c->threads;
    if (!s) s = ranks_open(&ranks, &threads, c, err);
    if (!s) s = check_ranks(ranks, o, err);
    const bool speaks = comm_rank(ranks) == 0;
    if (!s && o->imatrix && (s = imatrix_open(&importance, o->imatrix, err)))
        lq_wrap(err, s, "--imatrix");
    if (s) {
        src_close(q.like);
        return s;
    }
    if (o->imatrix) lq_hash_hex(q.imatrix_hash, &importance.hash);
    to.like = q.like;
    const char *given = q.like ? o->refine.ref : c->argv[0];
    src_source *src = NULL, *seen = NULL; /* the source; what is quantized of it */
    src_source *form = NULL;              /* ... where GGUF has other weights */
    rot_model *rotated = NULL;
    pool *p = NULL;
    carried_tok tok = { 0 };
    cal_samples samples = { 0 }, check = { 0 };
    stats_set *stats = NULL;
    qz_result r = { 0 };
    cJSON *about = NULL; /* for --report */
    s = src_open(&src, given, &(src_opts){ .need_config = true }, err);
    if (s) goto done;
    load_say_notes(given, src);
    own.len = quantize_len(c, own.len, src);
    if ((s = check_places(o, &to, src, given, err))) goto done;
    if (quantize_to_blocks(&to) && (s = src_gguf_form(&form, src, err))) goto done;
    seen = form ? form : src;
    if (q.like && (s = refine_fits(&q, seen, err))) goto done;
    if (src_config(src)->head == HEAD_NONE) q.lm_head = o->lm_head; /* not of take_bpw */
    if (o->report && (s = html_check(o->report, "--report", err))) goto done;
    int64_t usual = 0;
    s = settle_tuning(&q, &usual, c, &own, src, err);
    if (!s) s = settle_match(&q, o, src, err);
    if (!s) s = pool_open(&p, threads, err);
    if (!s && o->rotate)
        s = rot_open(&rotated, seen, &(rot_opts){ q.rotate_seed, qz_rounds_outer(&q) }, p,
                     &qrep_voice, err);
    if (rotated) seen = rot_source(rotated);
    if (!s) s = quantize_to_fits(&to, seen, &q, err);
    const bool checked = opt_tri_or(o->check, qz_calibrated(&q));
    const bool self_asked = opt_given(c, "self-samples");
    if (s || o->dry_run) {
        const cal_samples most = { .n = o->samples, .len = o->len };
        const cal_samples windows = { .n = checked ? QZ_CHECK_WINDOWS : 0, .len = o->len };
        const qz_job would = { .o = &q,
                               .samples = qz_calibrated(&q) ? &most : NULL,
                               .self_windows = self_asked
                                                   ? o->self
                                                   : quantize_self_windows(&q, src, o->samples),
                               .memory_limit = o->memory_limit,
                               .speed = qz_calibrated(&q) && !s && !ranks ? probe_speed(p) : 0,
                               .ranks = ranks,
                               .check = &windows };
        if (!s && speaks) s = qrep_plan(seen, &would, o->out, pool_threads(p), c, err);
        goto done;
    }
    s = open_device(&on, o->device, err);
    if (s) goto done;
    s = check_stats(o, &q, ranks, err);
    if (!s) s = check_shard(c, o, &q, ranks, err);
    if (s) goto done;
    q.on = on.ops ? &on : NULL;
    s = carried_tok_open(&tok, src, qz_calibrated(&q) || checked, err);
    const dataset_opts mix = { src, tok.tok, o->samples, o->len, (uint64_t)o->seed };
    if (!s && qz_calibrated(&q)) s = quantize_samples(&samples, o->calib, &mix, usual, err);
    const stats_subject of = { seen, form != NULL, &samples, &q };
    if (!s && o->stats_only) {
        s = quantize_stats_make(o->out, seen, &of, o->shard, o->stats_parts, p, c, err);
        goto done;
    }
    if (!s && o->stats.n) s = quantize_stats_open(&stats, o->stats.v, o->stats.n, &of, err);
    if (!s && checked) s = quantize_held_out(&check, &samples, o->calib, &mix, err);
    if (s) goto done;
    carried_tok_read(&tok);
    qz_job job = { .o = &q,
                   .samples = qz_calibrated(&q) ? &samples : NULL,
                   .seed = (uint64_t)o->seed,
                   .self_windows = self_asked ? o->self : quantize_self_windows(&q, src, samples.n),
                   .self_asked = self_asked,
                   .reproducible = o->reproducible,
                   .memory_limit = o->memory_limit,
                   .speed = qz_calibrated(&q) && !ranks ? probe_speed(p) : 0,
                   .ranks = ranks,
                   .stats = stats,
                   .resume = opt_tri_or(o->resume, false),
                   .restart = !opt_tri_or(o->resume, true),
                   .to = to.format,
                   .state_at = o->out, /* with --to too, whose file gets another name first */
                   .check = &check,
                   .tokenizer = tok.data,
                   .tokenizer_bytes = tok.bytes,
                   .voice = qrep_voice,
                   .view = c->result ? (progress_view){ 0 } : qrep_view };
    if (o->shard && (s = shard_read(&job.shard, &job.n_shards, o->shard, err))) goto done;
    s = qz_run(&r, seen, to.made, &job, p, c->job, err);
    prog_end();
    if (!s && job.n_shards) {
        prog_say(LOG_INFO, "%s: layers of share %d of %d are finished", o->out, job.shard + 1,
                 job.n_shards);
        if (c->json) s = cmd_give_json(c, shard_json(o, &job), err);
        goto done;
    }
    if (s || !speaks) goto done;
    if (!s && o->report && r.resumed >= 0)
        s = qhtml_about(&about, to.made, strcmp(to.made, o->out) == 0, err);
    if (!s) s = quantize_to_write(&to, o->out, &r, c, p, err);
    const qrep_run what = { o->out, o->method, c->argv[0], lq_now() - start };
    if (!s && o->report && r.resumed < 0)
        prog_say(LOG_WARN, "%s: no report of a file that was finished before", o->report);
    else if (!s && o->report)
        s = qhtml_write(o->report, &r, &what, about, err);
    if (!s && c->json)
        s = cmd_give_json(c, qrep_json(&r, &what), err);
    else if (!s)
        qrep_print_text(&r, &what);
done:
    stats_close(stats);
    imatrix_close(&importance);
    cJSON_Delete(about);
    qz_result_free(&r);
    cal_samples_free(&samples);
    cal_samples_free(&check);
    carried_tok_close(&tok);
    rot_close(rotated);
    if (on.ops) on.ops->close(&on);
    pool_close(p);
    src_close(form);
    src_close(src);
    src_close(q.like);
    return s;
}

const cmd_row cmd_quantize = {
    .name = "quantize",
    .summary = "make a model smaller: fewer bits per weight",
    .details =
        "Where to start: auto, the default, at 4 bits; --effort best keeps most and takes longest; "
        "awq and "
        "gptq take about what --effort standard takes; rtn and nf4 need no text and seconds. Fewer "
        "bits: auto at 3, with "
        "smaller groups (-g 32) at 2. --dry-run shows sizes first, --report a page after. "
        "What a run prints and measures: docs/quantizing.md; the methods: docs/methods/.\n"
        "\n"
        "Works layer by layer: memory stays at one layer and the calibration states. The "
        "output appears whole or not at all; an interrupted run goes on with --resume and "
        "gives the same bytes.\n"
        "\n"
        "Several processes share the work and give the same bytes: mpirun -n 4 llmq quantize ... "
        "(docs/quantizing.md).\n"
        "\n"
        "--model-free rounds the matrices of a checkpoint of any architecture by their names "
        "and shapes, and writes a folder for vLLM and others.",
    .args = { { "SRC", 0, 1,
                "a Hugging Face folder, .llmq or .gguf file with float weights, or ORG/NAME on the "
                "hub; with --refine a quantized GGUF file",
                FILES_MODEL } },
    .groups = { OPT_GROUP("Options", main_rows, 0), OPT_GROUP("Calibration", calib_rows, 0),
                OPT_GROUP("Statistics as files", stats_rows, 0),
                OPT_GROUP("Which tensors", which_rows, 0), OPT_GROUP("Running", run_rows, 0),
                OPT_GROUP("Models of any architecture", model_free_rows, F(free)) },
    .examples = "llmq quantize models/novels-6m -o awq4.llmq --method awq\0"
                "llmq quantize models/novels-6m -o best4.llmq --effort best --report best4.html\0"
                "llmq quantize models/novels-6m -o gptq3.llmq --method gptq --bits 3 "
                "--calib my-text.txt\0"
                "llmq quantize models/novels-6m -o mix.llmq --method gptq --override "
                "'down_proj=u8-g128'\0"
                "llmq quantize models/novels-6m -o best3.llmq --method auto --bits 3\0"
                "llmq quantize models/novels-6m -o mix3.llmq --method gptq --bpw 3.25\0"
                "llmq quantize models/novels-6m -o mix4.gguf --to gguf --method gptq --bpw 4.5\0"
                "llmq quantize models/novels-6m --method nf4 --double-quant --dry-run\0"
                "mpirun -n 4 llmq quantize models/novels-6m -o gptq4.llmq --method gptq\0"
                "llmq quantize m-Q4_K_M.gguf -o better.gguf --refine --ref models/m -m gptq\0"
                "llmq quantize NEW-MODEL -o NEW-MODEL-W4A16 --model-free --sym\0"
                "llmq quantize NEW-MODEL -o NEW-MODEL-FP8 --model-free --to fp8\0",
    .note = qmethods_note,
    .opts_bytes = sizeof(quantize_opts),
    .run = quantize_run,
    .processes = CMD_SHARED,
};
