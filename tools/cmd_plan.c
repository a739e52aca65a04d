/* tools/cmd_plan.c - `llmq plan`: will it fit, and how fast can it be? Arithmetic on the config;
 * no weight is read. */
#include "tools/cmds.h"

#include "base/machine.h"
#include "kernels/bench/bench.h"
#include "quantize/job/rank_plan.h"
#include "quantize/tune/tune.h"
#include "runtime/engine/sizing.h"
#include "runtime/engine/spec.h"
#include "runtime/forward/forward.h"
#include "runtime/load.h"
#include "runtime/model/kv_window.h"
#include "runtime/model/rank.h"
#include "tools/bench/roofline.h"
#include "tools/cli/footprint.h"
#include "tools/cli/gpus.h"
#include "tools/cli/limits.h"
#include "tools/report/plan_quantize.h"
#include "tools/report/quantize_calib.h"
#include "tools/server/serve_budget.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

typedef struct {
    const char *scheme, *draft, *gpu;
    bool mtp;
    size_t memory, gpu_memory;
    int64_t ctx, batch_tokens, ranks;
    double bandwidth, gflops, gpu_bandwidth, gpu_gflops;
    opt_model model;
} plan_opts;

#define F(field) offsetof(plan_opts, field)
static const opt_row rows[] = {
    { "scheme", 's', OPT_STR, F(scheme), .arg = "SCHEME",
      .help = "plan as if the linear layers were in this scheme, such as u4-g128, nf4 or bf16; "
              "without it they stay as they are stored" },
    { "speculative-model", 0, OPT_STR, F(draft), .arg = "DRAFT", .files = FILES_HEADERS,
      .help = "count a draft model too: its weights, its cache and its scratch" },
    { "speculative-mtp", 0, OPT_FLAG, F(mtp),
      .help = "count the model's head for multi-token prediction, likewise" },
    { "ctx", 0, OPT_INT, F(ctx), .def = "0", .lo = 0, .hi = 1 << 30,
      .help = "tokens per sequence when sequences are counted; 0 takes the model's maximum" },
    { "max-num-batched-tokens", 0, OPT_INT, F(batch_tokens), .def = "512", .lo = 1, .hi = 65536,
      .help = "tokens of a step, which set the size of its scratch" },
    { "ranks", 0, OPT_INT, F(ranks), .lo = 1, .hi = 1024,
      .help = "what `mpirun -n N llmq quantize` takes of gptq or awq with 128 windows of 512 "
              "tokens: memory, bytes and "
              "work of a rank, counted for 1, 2, 4, ... and N of them" },
    { "memory", 0, OPT_SIZE, F(memory), .arg = "SIZE",
      .help = "memory to fit into; without it what is free here" },
    { "gpu", 0, OPT_STR, F(gpu), .arg = "NAME",
      .help = "a GPU that holds --gpu-layers of the model (default auto), by its maker's figures: "
              "h100-sxm, rtx-4090 and others (another word lists them all)" },
    { "gpu-memory", 0, OPT_SIZE, F(gpu_memory), .arg = "SIZE",
      .help = "memory of such a GPU; without it --gpu's, or, with --device cuda or --gpu-layers, "
              "what is free on the one here" },
    { "bandwidth", 0, OPT_FLOAT, F(bandwidth), .arg = "GB/S", .lo = 0, .hi = 1e6,
      .help = "the CPU's memory bandwidth in 10^9 bytes per second; without it measured here" },
    { "gflops", 0, OPT_FLOAT, F(gflops), .arg = "G", .lo = 0, .hi = 1e9,
      .help = "its arithmetic in 10^9 operations per second; without it what the kernels reach "
              "here" },
    { "gpu-bandwidth", 0, OPT_FLOAT, F(gpu_bandwidth), .arg = "GB/S", .lo = 0, .hi = 1e6,
      .help = "the same of the GPU, in place of what its maker says" },
    { "gpu-gflops", 0, OPT_FLOAT, F(gpu_gflops), .arg = "G", .lo = 0, .hi = 1e9,
      .help = "the same of the GPU: dense products in bf16" },
};

enum { PLAN_RANKS = 12 };

/* Everything that the report says. */
typedef struct {
    const arch_config *cfg;
    const char *format, *scheme_text;
    foot_weights w;
    size_t kv_per_token, scratch_bytes, memory_bytes;
    size_t state_bytes; /* of a sequence, whatever its length; 0: no layer has one */
    /* Of a sequence, in layers that keep a window of its K and V alone; and their part of kv_per_token. 0:
     * no layer does, or a GPU has some */
    size_t window_bytes, window_kv;
    size_t draft_weights, draft_kv; /* of a draft model; the latter per token */
    int64_t ctx, max_len, max_batch, max_tokens;
    struct {
        bool on;
        int64_t layers; /* the last ones */
        int ranks;      /* GPUs that share all layers; what follows is of each */
        size_t memory, weights, kv_per_token, scratch;
        size_t state;           /* a sequence's, of those layers */
        size_t moved, kv_moved; /* weights and cache that the host does not have */
        const gpu_row *known;   /* NULL: not in the table */
        char name[64];          /* of the one here, or the table's; "": neither */
        foot_weights last;      /* what a step reads there */
        bool timed;             /* the limits below are known */
        const char *source;     /* of all that they come from; NULL: some was told */
        roof_side side;
        roof_limits limits; /* of both sides, one after the other */
    } gpu;
    roof_side cpu; /* with all of the model, as are its limits */
    roof_limits limits;
    plan_need quantize[PLAN_METHODS]; /* [n_quantize] */
    int n_quantize;
    rank_plan ranks[PLAN_RANKS]; /* [n_ranks] */
    rank_plan back[PLAN_RANKS];  /* what auto adds, where n_back is n_ranks */
    int n_ranks, n_back, steps;
    const qz_effort *effort; /* of auto */
    budget serve;            /* what `llmq serve` takes; no rows where it would not start */
} plan;

/* ---- limits ---- */
static lq_status measure(roof_side *cpu, const arch_config *cfg, const plan_opts *o,
                         const qt_scheme *scheme, pool *p, lq_err *err)
{
    lq_status s = LQ_OK;
    cpu->bandwidth = o->bandwidth * 1e9;
    cpu->flops = o->gflops * 1e9;
    if (cpu->bandwidth <= 0) {
        bench_limits one, all;
        s = bench_limits_run(&one, &all, &(bench_opts){ 0 }, p, err);
        if (!s) cpu->bandwidth = all.read_gbytes_s * 1e9;
    }
    qt_scheme dense = { .kind = QT_DENSE, .dtype = cfg->dtype };
    if (!s && cpu->flops <= 0)
        s = lim_matmul_flops(&cpu->flops, scheme ? scheme : &dense, opt_acts(&o->model), p, err);
    return s;
}

/* The GPU has the last layers, the CPU the others: none of several GPUs' (their parts, which run at
 * the same time, are alike). */
static void time_gpu(plan *pl, const plan_opts *o, const foot_weights *whole_last)
{
    const gpu_row *known = pl->gpu.known;
    roof_side *there = &pl->gpu.side, here = pl->cpu;
    there->bandwidth = 1e9 * (o->gpu_bandwidth > 0 ? o->gpu_bandwidth
                              : known              ? known->gbytes_s
                                                   : 0);
    there->flops = o->gpu_gflops > 0 ? 1e9 * o->gpu_gflops : known ? 1e12 * known->tflops : 0;
    there->bytes = (double)pl->gpu.last.step_bytes + 2 * (double)pl->gpu.state;
    there->weights = pl->gpu.last.step_weights;
    there->kv_bytes = (double)pl->gpu.kv_per_token;
    if (known && o->gpu_bandwidth <= 0 && o->gpu_gflops <= 0) pl->gpu.source = known->source;
    pl->gpu.timed = pl->gpu.layers && there->bandwidth > 0 && there->flops > 0;
    if (!pl->gpu.timed) return;
    here.bytes -= (double)whole_last->step_bytes + 2 * (double)pl->gpu.state;
    here.weights -= whole_last->step_weights;
    here.kv_bytes -= (double)pl->gpu.kv_moved;
    pl->gpu.limits = roof_of((roof_side[]){ here, *there }, 2, (double)pl->ctx);
}

/* Of a memory, with so much in it already: INT64_MAX where no token takes any. */
static int64_t tokens_of(size_t memory, size_t fixed, size_t per_token)
{
    if (fixed > memory) return 0;
    return per_token ? (int64_t)((memory - fixed) / per_token) : INT64_MAX;
}

static void derive(plan *pl)
{
    const size_t there_fixed = pl->gpu.weights + pl->gpu.scratch;
    const int64_t there =
        tokens_of(pl->gpu.memory, there_fixed + pl->gpu.state, pl->gpu.kv_per_token);
    const size_t fixed =
        pl->w.weights_bytes - pl->gpu.moved + pl->draft_weights + pl->scratch_bytes;
    const size_t per_token = pl->kv_per_token - pl->gpu.kv_moved - pl->window_kv + pl->draft_kv;
    const size_t per_sequence = pl->state_bytes - pl->gpu.state + pl->window_bytes;
    pl->max_tokens = tokens_of(pl->memory_bytes, fixed + per_sequence, per_token);
    if (pl->gpu.on && there < pl->max_tokens) pl->max_tokens = there;
    pl->max_len = pl->max_tokens < pl->cfg->max_pos ? pl->max_tokens : pl->cfg->max_pos;
    pl->max_batch = pl->max_tokens / pl->ctx;
    if (per_sequence)
        pl->max_batch =
            tokens_of(pl->memory_bytes, fixed, per_sequence + per_token * (size_t)pl->ctx);
    const int64_t batch_there = tokens_of(pl->gpu.memory, there_fixed,
                                          pl->gpu.state + pl->gpu.kv_per_token * (size_t)pl->ctx);
    if (pl->gpu.state && batch_there < pl->max_batch) pl->max_batch = batch_there;
    pl->cpu.bytes = (double)pl->w.step_bytes + 2 * (double)pl->state_bytes; /* read and written */
    pl->cpu.weights = pl->w.step_weights;
    pl->cpu.kv_bytes = (double)pl->kv_per_token;
    if (pl->window_kv) /* of which a step reads the window */
        pl->cpu.kv_bytes -= (double)pl->window_kv * (1 - (double)pl->cfg->window / (double)pl->ctx);
    pl->limits = roof_of(&pl->cpu, 1, (double)pl->ctx);
}

/* ---- the report ---- */
static void add_speeds(cJSON *o, const char *of, const roof_side *side, const roof_limits *l)
{
    const struct {
        const char *key;
        double v;
    } all[] = {
        { "bandwidth_bytes_s", side->bandwidth }, { "flops", side->flops },
        { "decode_tok_s_limit", l->decode },      { "decode_tok_s_limit_full", l->decode_full },
        { "prefill_tok_s_limit", l->prefill },    { "optimal_batch", roof_batch(side) }
    };
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        char key[48];
        snprintf(key, sizeof key, "%s%s", of, all[i].key);
        cJSON_AddNumberToObject(o, key, all[i].v);
    }
}

static cJSON *as_json(const plan *pl)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "arch", pl->cfg->row->arch);
    cJSON_AddStringToObject(o, "format", pl->format);
    cJSON_AddStringToObject(o, "scheme", pl->scheme_text);
    cJSON_AddNumberToObject(o, "params", pl->w.params);
    cJSON_AddNumberToObject(o, "params_active", pl->w.params - arch_idle_params(pl->cfg));
    cJSON_AddNumberToObject(o, "weights_bytes", (double)pl->w.weights_bytes);
    if (pl->w.rows_bytes) cJSON_AddNumberToObject(o, "rows_bytes", (double)pl->w.rows_bytes);
    cJSON_AddNumberToObject(o, "kv_bytes_per_token", (double)pl->kv_per_token);
    if (pl->state_bytes)
        cJSON_AddNumberToObject(o, "state_bytes_per_sequence", (double)pl->state_bytes);
    if (pl->window_bytes) {
        cJSON_AddNumberToObject(o, "window_kv_bytes_per_token", (double)pl->window_kv);
        cJSON_AddNumberToObject(o, "window_bytes_per_sequence", (double)pl->window_bytes);
    }
    if (pl->draft_weights) {
        cJSON_AddNumberToObject(o, "draft_weights_bytes", (double)pl->draft_weights);
        cJSON_AddNumberToObject(o, "draft_kv_bytes_per_token", (double)pl->draft_kv);
    }
    cJSON_AddNumberToObject(o, "scratch_bytes", (double)pl->scratch_bytes);
    cJSON_AddNumberToObject(o, "memory_bytes", (double)pl->memory_bytes);
    cJSON_AddBoolToObject(o, "fits", pl->max_tokens > 0);
    cJSON_AddNumberToObject(o, "ctx", (double)pl->ctx);
    cJSON_AddNumberToObject(o, "max_len", (double)pl->max_len);
    cJSON_AddNumberToObject(o, "max_batch", (double)pl->max_batch);
    cJSON_AddNumberToObject(o, "max_tokens", (double)pl->max_tokens);
    if (pl->gpu.on) {
        cJSON_AddNumberToObject(o, "gpu_memory_bytes", (double)pl->gpu.memory);
        cJSON_AddNumberToObject(o, "layers", (double)pl->cfg->layers);
        cJSON_AddNumberToObject(o, "gpu_layers", (double)pl->gpu.layers);
        cJSON_AddNumberToObject(o, "gpus", pl->gpu.ranks);
        cJSON_AddNumberToObject(o, "gpu_weights_bytes", (double)pl->gpu.weights);
        cJSON_AddNumberToObject(o, "gpu_kv_bytes_per_token", (double)pl->gpu.kv_per_token);
        cJSON_AddNumberToObject(o, "gpu_scratch_bytes", (double)pl->gpu.scratch);
        if (pl->gpu.name[0]) cJSON_AddStringToObject(o, "gpu", pl->gpu.name);
    }
    cJSON_AddStringToObject(o, "device", "cpu"); /* whose the speeds are, with all of the model */
    add_speeds(o, "", &pl->cpu, &pl->limits);
    if (pl->gpu.timed) add_speeds(o, "gpu_", &pl->gpu.side, &pl->gpu.limits);
    if (pl->serve.n) cJSON_AddItemToObject(o, "serve", budget_json(&pl->serve));
    cJSON *quantize = pl->n_quantize ? cJSON_AddObjectToObject(o, "quantize") : NULL;
    for (int i = 0; i < pl->n_quantize; i++) {
        const qz_memory *n = &pl->quantize[i].memory;
        cJSON *m = cJSON_AddObjectToObject(quantize, pl->quantize[i].method->name);
        cJSON_AddNumberToObject(m, "memory_bytes", (double)n->rss);
        cJSON_AddNumberToObject(m, "least_memory_limit", (double)n->least);
        cJSON_AddNumberToObject(m, "disk_bytes", (double)n->disk);
    }
    cJSON *ranks = pl->n_ranks ? cJSON_AddArrayToObject(o, "quantize_ranks") : NULL;
    for (int i = 0; i < pl->n_ranks; i++) {
        const rank_plan *r = &pl->ranks[i];
        cJSON *m = cJSON_CreateObject();
        cJSON_AddItemToArray(ranks, m);
        cJSON_AddNumberToObject(m, "ranks", r->ranks);
        cJSON_AddNumberToObject(m, "memory_bytes", floor(r->memory));
        cJSON_AddNumberToObject(m, "received_bytes", floor(r->received));
        cJSON_AddNumberToObject(m, "multiply_adds", floor(r->work));
        cJSON_AddNumberToObject(m, "efficiency", rank_plan_efficiency(r));
        if (!pl->n_back) continue;
        cJSON *back = cJSON_AddObjectToObject(m, "auto_adds");
        cJSON_AddNumberToObject(back, "received_bytes", floor(pl->back[i].received));
        cJSON_AddNumberToObject(back, "multiply_adds", floor(pl->back[i].work));
        cJSON_AddNumberToObject(back, "efficiency", rank_plan_efficiency(&pl->back[i]));
    }
    return o;
}

static void print_ranks(const plan *pl)
{
    char a[16], b[16];
    if (!pl->n_ranks) return;
    printf("\nranks that quantize it (gptq, awq; %d windows of %d tokens), each at most:\n"
           "%8s %12s %12s %14s %12s\n",
           QUANTIZE_WINDOWS, QUANTIZE_LEN, "ranks", "memory", "received", "multiply-adds",
           "efficiency");
    for (int i = 0; i < pl->n_ranks; i++) {
        const rank_plan *r = &pl->ranks[i];
        printf("%8d %12s %12s %14.3g %11.0f%%\n", r->ranks, opt_limit_text(a, sizeof a, r->memory),
               opt_limit_text(b, sizeof b, r->received), r->work, 100 * rank_plan_efficiency(r));
    }
    if (!pl->n_back) return;
    printf(
        "\nwhat auto adds (curvature of %lld windows, %d steps of %d):\n%8s %12s %12s %14s %12s\n",
        (long long)pl->effort->curvature, pl->steps, pl->effort->batch, "ranks", "", "received",
        "multiply-adds", "efficiency");
    for (int i = 0; i < pl->n_back; i++)
        printf("%8d %12s %12s %14.3g %11.0f%%\n", pl->back[i].ranks, "",
               opt_limit_text(b, sizeof b, pl->back[i].received), pl->back[i].work,
               100 * rank_plan_efficiency(&pl->back[i]));
}

static void print_speeds(const roof_side *side, const roof_limits *l, const char *whose,
                         int64_t ctx)
{
    const double batch = roof_batch(side);
    printf("%-34s %12.1f GB/s\n", "memory bandwidth", side->bandwidth * 1e-9);
    printf("%-34s %12.1f GFLOP/s\n", whose, side->flops * 1e-9);
    printf("%-34s %12.1f tokens/s at most (%.1f with %lld tokens in the cache)\n",
           "decoding one sequence", l->decode, l->decode_full, (long long)ctx);
    printf("%-34s %12.1f tokens/s at most\n", "prefill", l->prefill);
    printf("%-34s %12.0f %s\n", "batch where they meet", batch,
           batch > 1 ? "sequences: below, memory is the limit; above, arithmetic"
                     : "sequence: arithmetic is the limit of any number");
}

/* Of the CPU with all of it, and of both. */
static void print_limits(const plan *pl)
{
    printf("\n");
    if (pl->gpu.on) printf("all on the CPU:\n");
    print_speeds(&pl->cpu, &pl->limits, "arithmetic of the kernels", pl->ctx);
    if (!pl->gpu.on || !pl->gpu.layers) return;
    if (!pl->gpu.timed) {
        printf("\nthe speed of %s is not known here: --gpu NAME, or --gpu-bandwidth and "
               "--gpu-gflops\n",
               pl->gpu.name[0] ? pl->gpu.name : "the GPU");
        return;
    }
    printf("\n%lld of %lld layers on %s%s", (long long)pl->gpu.layers, (long long)pl->cfg->layers,
           pl->gpu.name[0] ? "" : "the GPU", pl->gpu.name);
    if (pl->gpu.ranks > 1)
        printf(" x %d (exchanges take no time here)", pl->gpu.ranks);
    else if (pl->gpu.layers < pl->cfg->layers)
        printf(", the others on the CPU, one side after the other");
    printf(":\n");
    print_speeds(&pl->gpu.side, &pl->gpu.limits, "arithmetic, dense bf16", pl->ctx);
    if (pl->gpu.source) printf("bandwidth and arithmetic by %s\n", pl->gpu.source);
}

/* "on rtx-4090", "3 of 6 layers on the GPU, the others on the CPU with 2 threads" */
static void print_where(const plan *pl, int threads)
{
    const long long n = pl->gpu.on ? pl->gpu.layers : 0, all = pl->cfg->layers;
    const char *name = pl->gpu.name[0] ? pl->gpu.name : "the GPU";
    if (n && n < all) printf("%lld of %lld layers ", n, all);
    if (n) printf("on %s", name);
    if (n && pl->gpu.ranks > 1) printf(" x %d", pl->gpu.ranks);
    if (n && n < all) printf(", the others ");
    if (n < all) printf("on the CPU with %d thread%s", threads, threads == 1 ? "" : "s");
    printf("\n\n");
}

static void print_serve(const plan *pl)
{
    const budget *s = &pl->serve;
    char a[16], kv[16], step[16];
    if (s->gpu.layers)
        printf("\nllmq serve holds there %s of weights, %s of KV cache and %s for a step%s\n",
               opt_size_text(a, sizeof a, (double)s->gpu.weights),
               opt_size_text(kv, sizeof kv, (double)s->gpu.kv),
               opt_size_text(step, sizeof step, (double)s->gpu.step),
               s->gpu.ranks > 1 ? ", on each" : "");
    if (s->n)
        printf("\nrequests to llmq serve, which says so with --dry-run for other options, take at "
               "most\n");
    for (int i = s->n_held; i < s->n; i++)
        printf("  %-32s %12s  %s\n", s->rows[i].name,
               opt_size_text(a, sizeof a, (double)s->rows[i].bytes), s->rows[i].note);
    if (s->n)
        printf("%-34s %12s\n", "  all together",
               opt_size_text(a, sizeof a, (double)(s->total - s->held)));
}

static void print_text(const plan *pl, int threads)
{
    char a[16];
    printf("%s (%s, %s), ", pl->cfg->row->arch, pl->format, pl->scheme_text);
    print_where(pl, threads);
#define BYTES(what, n) printf("%-34s %12s\n", what, opt_size_text(a, sizeof a, (double)(n)))
    printf("%-34s %10.4g M", "parameters", pl->w.params / 1e6);
    if (pl->cfg->experts)
        printf(", %.4g M of them for a token", (pl->w.params - arch_idle_params(pl->cfg)) / 1e6);
    printf("\n");
    BYTES("weights", pl->w.weights_bytes);
    if (pl->w.rows_bytes) BYTES("rows read from the file as needed", pl->w.rows_bytes);
    BYTES("KV cache per token", pl->kv_per_token);
    if (pl->window_bytes) {
        BYTES("of it in layers with a window", pl->window_kv);
        BYTES("at most, in these, per sequence", pl->window_bytes);
    }
    if (pl->state_bytes) BYTES("state per sequence", pl->state_bytes);
    if (pl->draft_weights) {
        BYTES("weights of the draft", pl->draft_weights);
        BYTES("its KV cache per token", pl->draft_kv);
    }
    BYTES("scratch", pl->scratch_bytes);
    BYTES("memory to fit into", pl->memory_bytes);
    if (pl->gpu.on) {
        printf("\n%-34s %12lld of %lld, and the head\n", "layers on the GPU",
               (long long)pl->gpu.layers, (long long)pl->cfg->layers);
        if (pl->gpu.ranks > 1)
            printf("%-34s %12d, each with a part of them\n", "GPUs", pl->gpu.ranks);
        BYTES("their weights", pl->gpu.weights);
        BYTES("their KV cache per token", pl->gpu.kv_per_token);
        BYTES("scratch there", pl->gpu.scratch);
        BYTES("the GPU's memory", pl->gpu.memory);
    }
    if (pl->max_tokens <= 0) {
        printf("\nIt does not fit: weights and scratch alone are more than the memory.\n");
    } else {
        printf("\n%-34s %12lld tokens (the model's maximum is %lld)\n", "longest sequence",
               (long long)pl->max_len, (long long)pl->cfg->max_pos);
        printf("at %-9lld tokens per sequence    %12lld sequences at once\n", (long long)pl->ctx,
               (long long)pl->max_batch);
    }
    print_limits(pl);
    print_serve(pl);
#undef BYTES
    if (pl->n_quantize) printf("\nto quantize it here:\n");
    for (int i = 0; i < pl->n_quantize; i++) {
        const qz_memory *n = &pl->quantize[i].memory;
        char b[16], d[16];
        printf("  %-32s %12s of memory (--memory-limit down to %s), %s of disk\n",
               pl->quantize[i].method->name, opt_limit_text(a, sizeof a, (double)n->rss),
               opt_limit_text(b, sizeof b, (double)n->least),
               opt_limit_text(d, sizeof d, (double)n->disk));
    }
    print_ranks(pl);
}

/* 1, 2, 4, ... below N, and N. */
static lq_status add_ranks(plan *pl, int64_t ranks, lq_err *err)
{
    lq_status s = qz_effort_find(&pl->effort, QZ_EFFORT_DEFAULT, err);
    if (!s) pl->effort = qz_effort_for(pl->effort, pl->w.params <= (double)TUNE_SMALL_WEIGHTS);
    pl->steps = s ? 0 : pl->effort->steps;
    for (int64_t n = 1; ranks && !s; n *= 2) {
        const bool last = n >= ranks;
        const int now = (int)(last ? ranks : n);
        s = rank_plan_of(&pl->ranks[pl->n_ranks++], pl->cfg, now, QUANTIZE_WINDOWS, QUANTIZE_LEN,
                         err);
        if (rank_plan_back(&pl->back[pl->n_back], pl->cfg, now, pl->effort, pl->steps,
                           QUANTIZE_LEN))
            pl->n_back++;
        if (last) break;
    }
    return s;
}

static fwd_opts step_of(const plan_opts *o)
{
    return (fwd_opts){
        .acts = opt_acts(&o->model), .max_rows = o->batch_tokens, .max_logits = 64, .max_seqs = 64
    };
}

/* What layers with a window keep: on the CPU, of contexts that are longer. */
static void add_windows(plan *pl, const plan_opts *o)
{
    enum { BLOCK = 16 }; /* as served by default */
    const int64_t slots = kv_window_slots(pl->cfg, BLOCK, o->batch_tokens);
    if (pl->gpu.on || slots * BLOCK >= pl->ctx) return;
    const size_t slot = kv_window_bytes(pl->cfg, BLOCK, opt_kv(&o->model));
    pl->window_bytes = (size_t)slots * slot;
    pl->window_kv = slot / BLOCK;
}

/* What a draft model takes beside the model: it stays as it is stored. */
static lq_status add_draft(plan *pl, const plan_opts *o, const foot_model *draft, pool *p,
                           lq_err *err)
{
    const arch_config *cfg = foot_config(draft);
    foot_weights w;
    lq_status s = arch_is_eagle(cfg) ? model_eagle_fits(cfg, pl->cfg, err) : LQ_OK;
    if (!s) s = foot_weigh(&w, draft, NULL, err);
    if (!s && cfg->vocab != pl->cfg->vocab)
        s = lq_fail(err, LQ_EVALUE,
                    "--speculative-model: expected the model's vocabulary of %lld ids, found %lld",
                    (long long)pl->cfg->vocab, (long long)cfg->vocab);
    if (s) return s;
    fwd_opts step = step_of(o);
    pl->draft_weights = w.weights_bytes;
    pl->draft_kv = kv_token_bytes(cfg, opt_kv(&o->model));
    pl->scratch_bytes += fwd_bytes(cfg, &step, pool_threads(p));
    return LQ_OK;
}

/* Planned for a GPU that need not be here. */
static bool elsewhere(const plan_opts *o) { return o->gpu || o->gpu_memory; }

/* Which GPU it is, and its memory; that 0: the plan is for the CPU alone. */
static lq_status find_gpu(plan *pl, const plan_opts *o, lq_err *err)
{
    dev d;
    lq_err ignored;
    const char *want = opt_device(&o->model);
    const bool any = strcmp(want, "auto") == 0;
    if (o->gpu) {
        lq_status s = gpu_choose(&pl->gpu.known, o->gpu, err);
        if (s) return s;
        snprintf(pl->gpu.name, sizeof pl->gpu.name, "%s", pl->gpu.known->name);
        pl->gpu.memory = (size_t)(1e9 * pl->gpu.known->gbytes);
    }
    if (o->gpu_memory) pl->gpu.memory = o->gpu_memory;
    if (o->model.gpu_layers == 0) pl->gpu.memory = 0;
    if (elsewhere(o) || strcmp(want, "cpu") == 0) return LQ_OK;
    if (any && dev_count(&ignored) == 0) return LQ_OK;
    lq_status s = dev_open(&d, any ? "cuda" : want, err);
    if (s) return lq_wrap(err, s, "--device");
    snprintf(pl->gpu.name, sizeof pl->gpu.name, "%s", d.name);
    pl->gpu.known = gpu_find(d.name);
    pl->gpu.memory = d.ops->room(&d);
    d.ops->close(&d);
    return LQ_OK;
}

/* As the server divides it. */
static lq_status add_gpu(plan *pl, const foot_model *from, const plan_opts *o,
                         const qt_scheme *scheme, lq_err *err)
{
    const arch_config *c = pl->cfg;
    const int ranks = (int)o->model.ranks;
    if (!pl->gpu.memory) return LQ_OK;
    lq_status s = model_check_device(c, err);
    if (!s && ranks > 1) s = rank_check(c, ranks, err);
    if (s) return s;
    size_t *layer = malloc((size_t)(c->layers + 1) * sizeof *layer);
    model_sizes z;
    foot_weights here;
    if (!layer) return lq_fail(err, LQ_ENOMEM, "out of memory");
    const eng_opts asked = { .acts = opt_acts(&o->model),
                             .kv = opt_kv(&o->model),
                             .max_batch_tokens = o->batch_tokens,
                             .max_len = o->ctx };
    const load_opts how = { .gpu_layers = opt_gpu_layers(&o->model),
                            .ranks = ranks,
                            .beside = eng_beside(&asked) };
    const model_share share = load_share(c, &how);
    s = foot_sizes(&z, layer, from, scheme, ranks, share.half, err);
    if (!s) {
        int64_t n = share.layers;
        if (n == MODEL_ALL_LAYERS && elsewhere(o) && ranks == 1) n = MODEL_AUTO_LAYERS;
        if (n == MODEL_AUTO_LAYERS)
            n = model_fit(&z, &share, pl->gpu.memory);
        else if (n == MODEL_ALL_LAYERS || n > c->layers)
            n = c->layers;
        pl->gpu.on = true;
        pl->gpu.layers = n;
        pl->gpu.weights = model_size_on(&z, n);
        pl->gpu.state = kv_state_bytes_on(c, c->layers - n, ranks);
        pl->gpu.kv_moved = pl->kv_per_token / (size_t)c->layers * (size_t)n;
        lq_arena a = { 0 };
        arch_config own;
        s = rank_config(&own, c, ranks, &a, err);
        if (!s)
            pl->gpu.kv_per_token =
                kv_token_bytes(&own, opt_kv(&o->model)) / (size_t)c->layers * (size_t)n;
        lq_arena_free(&a);
        pl->gpu.ranks = ranks;
        pl->gpu.scratch = n ? share.more : 0;
        if (!s) s = foot_weigh_last(&pl->gpu.last, from, scheme, n, ranks, err);
        if (!s) s = foot_weigh_last(&here, from, scheme, n, 1, err);
        if (!s) pl->gpu.moved = here.weights_bytes + (n == c->layers ? z.embed : 0);
    }
    free(layer);
    return s;
}

/* With the options that a server has by itself. What does not fit has no sum, nor a GPU's draft. */
static void add_serve(plan *pl, const plan_opts *o, const foot_model *draft, int threads)
{
    const size_t all = pl->w.weights_bytes, moved = pl->gpu.moved < all ? pl->gpu.moved : all;
    budget_model m = { .cfg = pl->cfg,
                       .draft = draft ? foot_config(draft) : NULL,
                       .weights = all - moved,
                       .draft_weights = pl->draft_weights,
                       .format = pl->format,
                       .draft_format = draft ? foot_format(draft) : "",
                       .memory = pl->memory_bytes };
    const eng_opts e = { .acts = opt_acts(&o->model),
                         .kv = opt_kv(&o->model),
                         .max_len = o->ctx,
                         .max_batch_tokens = o->batch_tokens,
                         .guesses = draft ? SPEC_DEFAULT : 0 };
    http_opts h = { 0 };
    http_defaults(&h);
    if (pl->gpu.on && draft) return;
    if (pl->gpu.on)
        m.gpu = (budget_gpu){ .layers = pl->gpu.layers,
                              .ranks = pl->gpu.ranks,
                              .room = pl->gpu.memory,
                              .weights = pl->gpu.weights };
    snprintf(m.gpu.name, sizeof m.gpu.name, "%s", pl->gpu.name[0] ? pl->gpu.name : "the GPU");
    if (budget_sum(&pl->serve, &m, &e, &h, threads, NULL))
        pl->serve = (budget){ .n = 0 };
    else
        budget_add_stores(&pl->serve, 0, 0);
}

static lq_status make_plan(plan *pl, const foot_model *from, const foot_model *draft,
                           const plan_opts *o, pool *p, lq_err *err)
{
    qt_scheme scheme;
    foot_weights last; /* of all GPUs */
    lq_status s = o->scheme ? qt_scheme_parse(&scheme, o->scheme, err) : LQ_OK;
    if (s) return lq_wrap(err, LQ_EUSAGE, "--scheme");
    s = find_gpu(pl, o, err);
    if (s) return s;
    pl->cfg = foot_config(from);
    pl->format = foot_format(from);
    pl->scheme_text = o->scheme ? o->scheme : "as stored";
    pl->ctx = o->ctx ? o->ctx : pl->cfg->max_pos;
    if (pl->ctx > pl->cfg->max_pos)
        return lq_fail(err, LQ_EUSAGE,
                       "--ctx: expected at most %lld (the model's maximum), found "
                       "%lld",
                       (long long)pl->cfg->max_pos, (long long)pl->ctx);
    pl->memory_bytes = o->memory ? o->memory : machine_memory();
    pl->kv_per_token = kv_token_bytes(pl->cfg, opt_kv(&o->model));
    pl->state_bytes = kv_state_bytes(pl->cfg);
    fwd_opts step = step_of(o);
    pl->scratch_bytes = fwd_bytes(pl->cfg, &step, pool_threads(p));
    s = foot_weigh(&pl->w, from, o->scheme ? &scheme : NULL, err);
    if (!s) s = add_gpu(pl, from, o, o->scheme ? &scheme : NULL, err);
    if (!s && draft) s = add_draft(pl, o, draft, p, err);
    if (!s) s = measure(&pl->cpu, pl->cfg, o, o->scheme ? &scheme : NULL, p, err);
    if (!s) add_windows(pl, o);
    if (!s) derive(pl);
    if (!s && pl->gpu.on)
        s = foot_weigh_last(&last, from, o->scheme ? &scheme : NULL, pl->gpu.layers, 1, err);
    if (!s && pl->gpu.on) time_gpu(pl, o, &last);
    if (!s) add_serve(pl, o, draft, pool_threads(p));
    if (!s && from->weights)
        pl->n_quantize = plan_quantize(pl->quantize, from->src, pool_threads(p));
    if (!s) s = add_ranks(pl, o->ranks, err);
    return s;
}

static lq_status plan_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const plan_opts *o = opts;
    foot_model from, draft = { 0 };
    plan pl = { 0 };
    pool *p = NULL;
    if (o->model.ranks > 1 && opt_gpu_layers(&o->model) != MODEL_ALL_LAYERS)
        return lq_fail(err, LQ_EUSAGE, "--tensor-parallel-size goes without --gpu-layers");
    if ((o->gpu_bandwidth > 0 || o->gpu_gflops > 0) && !elsewhere(o) &&
        strcmp(opt_device(&o->model), "cpu") == 0)
        return lq_fail(
            err, LQ_EUSAGE,
            "--gpu-bandwidth, --gpu-gflops: expected --gpu, --gpu-memory or --device cuda "
            "beside them");
    lq_status s = elsewhere(o) ? opt_check_kv(&o->model, err) : opt_model_start(&o->model, err);
    if (!s && elsewhere(o)) s = k_init(o->model.kernels, err);
    if (s) return s;
    s = foot_open(&from, c->argv[0], false, o->model.verify, o->model.rope, err);
    if (!s && o->draft) s = foot_open(&draft, o->draft, true, o->model.verify, NULL, err);
    if (!s && o->mtp) s = foot_head(&draft, &from, err);
    if (!s) s = pool_open(&p, c->threads, err);
    if (!s) s = make_plan(&pl, &from, o->draft || o->mtp ? &draft : NULL, o, p, err);
    if (!s && c->json)
        s = cmd_print_json(as_json(&pl), err);
    else if (!s)
        print_text(&pl, pool_threads(p));
    pool_close(p);
    foot_close(&draft);
    foot_close(&from);
    return s;
}

const cmd_row cmd_plan = {
    .name = "plan",
    .summary = "memory, largest context and batch, and the speed that the machine allows",
    .details = "The speeds are limits of memory bandwidth and arithmetic: measured here of the "
               "CPU, and of a "
               "GPU what its maker says (of parts that llmq knows; with some layers there the two "
               "sides of "
               "a step add up). A model so small that a cache holds its weights decodes faster "
               "than memory "
               "would allow.",
    .args = { { "MODEL", 1, 1,
                "checkpoint folder, .llmq file, ORG/NAME on the hub, or a config.json alone",
                FILES_HEADERS } },
    .groups = { OPT_GROUP("Options", rows, 0),
                OPT_GROUP("Running the model", opt_model_rows, F(model)) },
    .examples = "llmq plan models/novels-6m\0"
                "llmq plan models/novels-6m --scheme u4-g128 --ctx 512\0"
                "llmq plan Qwen/Qwen3-8B --gpu rtx-4090\0"
                "llmq plan config.json --scheme u4-g128 --memory 16G --bandwidth 50 --gflops 800\0"
                "llmq plan config.json --scheme u4-g128 --gpu h100-sxm\0"
                "llmq plan config.json --ranks 64\0"
                "llmq plan config.json --scheme u4-g128 --gpu-memory 8G\0",
    .opts_bytes = sizeof(plan_opts),
    .run = plan_run,
};
