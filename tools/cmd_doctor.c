/* tools/cmd_doctor.c - `llmq doctor`: what this machine can do, what it lacks, and the largest
 * models worth a try. */
#include "tools/cmds.h"

#include "base/machine.h"
#include "base/os.h"
#include "base/version.h"
#include "kernels/bench/bench.h"
#include "kernels/device.h"
#include "publish/hub/env.h"
#include "tools/cli/host.h"
#include "tools/cli/limits.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Sizes in which models are published, in 10^9 parameters, rising. */
static const double sizes[] = { 0.5, 1, 1.7, 3, 4, 8, 14, 24, 32, 70, 120, 235, 405, 685, 1000 };
/* Bits of a weight in a file by llmq, scales included. */
static const struct {
    const char *scheme;
    double bits;
} widths[] = { { "u4-g128", 4.5 }, { "u8-g32", 8.5 }, { "bf16", 16 } };
enum { CONTEXT = 8192, N_WIDTHS = LQ_COUNT(widths), FLUENT = 8 /* tokens a second */ };

typedef struct {
    char cpu[128], isas[256], devices[2048], driver[96], cache[4096];
    lq_err no_cache; /* why, where `cache` is empty */
    bool nvidia, cuda, gpu, token, offline;
    int cores, threads;
    size_t memory, total, disk; /* bytes: free, of the machine, free at the cache; 0: not told */
    double read_s, flops;       /* bytes and operations a second; 0: not measured */
    struct {
        double fits, fluent; /* of sizes; 0: none */
    } best[N_WIDTHS];
} findings;

/* ---- what is here ---- */
static size_t free_at(const char *path)
{
    char dir[4096];
    struct statvfs v;
    snprintf(dir, sizeof dir, "%s", path);
    while (statvfs(dir, &v) != 0) { /* the nearest folder that is there */
        char *slash = strrchr(dir, '/');
        if (!slash || slash == dir) return 0;
        *slash = 0;
    }
    return (size_t)v.f_bavail * v.f_frsize;
}

static lq_status measure(findings *f, pool *p, lq_err *err)
{
    bench_limits one, all;
    const qt_scheme u4 = { .kind = QT_UINT, .bits = 4, .group = 128, .scale_dtype = LQ_F16 };
    lq_status s = bench_limits_run(&one, &all, &(bench_opts){ 0 }, p, err);
    if (s) return s;
    f->read_s = all.read_gbytes_s * 1e9;
    return lim_matmul_flops(&f->flops, &u4, opt_acts(&(opt_model){ 0 }), p, err);
}

/* Weights, a cache of CONTEXT tokens (grouped heads: 45 KiB a token times the root of the
 * parameters in 10^9, which is what Llama 3's 1 B to 70 B have), and half a GiB of scratch. */
static double need(double billions, double bits)
{
    return billions * 1e9 * bits / 8 + 45.0 * 1024 * sqrt(billions) * CONTEXT + 512.0 * (1 << 20);
}

static double tokens_s(const findings *f, double billions, double bits)
{
    return f->read_s / (billions * 1e9 * bits / 8);
}

static void choose(findings *f)
{
    for (size_t w = 0; w < N_WIDTHS; w++)
        for (size_t i = 0; i < LQ_COUNT(sizes); i++) {
            if (need(sizes[i], widths[w].bits) > (double)f->memory) break;
            f->best[w].fits = sizes[i];
            if (tokens_s(f, sizes[i], widths[w].bits) >= FLUENT) f->best[w].fluent = sizes[i];
        }
}

static lq_status find(findings *f, int threads, bool quick, lq_err *err)
{
    lq_err gpu = { "" };
    hub_env *env = calloc(1, sizeof *env);
    pool *p = NULL;
    if (!env) return lq_fail(err, LQ_ENOMEM, "no memory");
    os_cpu_name(f->cpu, sizeof f->cpu);
    host_isas(f->isas, sizeof f->isas);
    host_devices(f->devices, sizeof f->devices);
    host_driver(f->driver, sizeof f->driver);
    f->nvidia = f->driver[0] || host_gpu();
    f->cuda = dev_cuda() != NULL;
    f->gpu = dev_count(&gpu) > 0;
    f->cores = machine_cpus();
    f->memory = machine_memory();
    f->total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    if (hub_env_read(env, &f->no_cache) == LQ_OK) {
        snprintf(f->cache, sizeof f->cache, "%s", env->cache);
        f->disk = free_at(env->cache);
        f->token = env->token[0] != 0;
        f->offline = env->offline;
    }
    free(env);
    lq_status s = pool_open(&p, threads, err);
    if (!s) f->threads = pool_threads(p);
    if (!s && !quick) s = measure(f, p, err);
    pool_close(p);
    if (!s) choose(f);
    return s;
}

/* ---- what could be better: a row each ---- */
static bool no_vectors(const findings *f)
{
    (void)f;
    return strcmp(k_name(), "ref") == 0;
}
static bool no_driver(const findings *f) { return f->nvidia && !f->driver[0]; }
static bool no_cuda(const findings *f) { return f->nvidia && f->driver[0] && !f->cuda; }
static bool gpu_fails(const findings *f) { return f->nvidia && f->cuda && !f->gpu; }
static bool little_memory(const findings *f) { return f->memory && !f->best[0].fits; }
static bool held_back(const findings *f) { return f->memory && f->memory < f->total / 3; }
static bool little_disk(const findings *f) { return f->disk && f->disk < 5e9; }
static bool no_cache(const findings *f) { return !f->cache[0]; }
static bool offline(const findings *f) { return f->offline; }

static const struct {
    const char *name;
    bool (*holds)(const findings *f);
    const char *text;
} advice[] = {
    { "no-vector-kernels", no_vectors,
      "no kernels for this processor's vectors: everything runs, many times slower (x86-64 needs "
      "AVX2, ARM needs 64 bits)" },
    { "no-driver", no_driver, "an NVIDIA GPU is here without a driver: install NVIDIA's" },
    { "no-cuda", no_cuda,
      "an NVIDIA GPU and its driver are here, this llmq was built without CUDA: install the CUDA "
      "toolkit and build again" },
    { "gpu-fails", gpu_fails,
      "the GPU cannot be used: see \"devices\" above (a container gets the driver's library by "
      "--gpus all)" },
    { "little-memory", little_memory, "too little memory is free for a model of 0.5 B at 4 bits" },
    { "held-back", held_back,
      "less than a third of the machine's memory may be used: other programs or a control group "
      "have the rest" },
    { "little-disk", little_disk,
      "less than 5 GB of disk are free for models by name: HF_HUB_CACHE names another place" },
    { "no-cache", no_cache, "models by name have no place to be: see above" },
    { "offline", offline, "HF_HUB_OFFLINE is set: models by name come from the cache alone" },
};

/* ---- the report ---- */
static cJSON *as_json(const findings *f)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "version", LLMQ_VERSION);
    cJSON_AddStringToObject(o, "cpu", f->cpu);
    cJSON_AddStringToObject(o, "isa", f->isas);
    cJSON_AddStringToObject(o, "kernels", k_name());
    cJSON_AddStringToObject(o, "kernels_available", k_list());
    cJSON_AddNumberToObject(o, "cores", f->cores);
    cJSON_AddNumberToObject(o, "threads", f->threads);
    cJSON_AddNumberToObject(o, "memory_bytes", (double)f->total);
    cJSON_AddNumberToObject(o, "memory_free_bytes", (double)f->memory);
    if (f->read_s > 0) {
        cJSON_AddNumberToObject(o, "read_bytes_s", f->read_s);
        cJSON_AddNumberToObject(o, "operations_s", f->flops);
    }
    cJSON_AddStringToObject(o, "devices", f->devices);
    cJSON_AddStringToObject(o, "nvidia_driver", f->driver);
    cJSON_AddStringToObject(o, "hub_cache", f->cache);
    cJSON_AddNumberToObject(o, "hub_cache_free_bytes", (double)f->disk);
    cJSON_AddBoolToObject(o, "hub_token", f->token);
    cJSON *models = cJSON_AddArrayToObject(o, "models"), *all;
    for (size_t w = 0; w < N_WIDTHS; w++) {
        cJSON *m = cJSON_CreateObject();
        cJSON_AddItemToArray(models, m);
        cJSON_AddStringToObject(m, "scheme", widths[w].scheme);
        cJSON_AddNumberToObject(m, "largest_params", f->best[w].fits * 1e9);
        if (f->read_s > 0) cJSON_AddNumberToObject(m, "fluent_params", f->best[w].fluent * 1e9);
    }
    all = cJSON_AddArrayToObject(o, "advice");
    for (size_t i = 0; i < LQ_COUNT(advice); i++)
        if (advice[i].holds(f)) {
            cJSON *a = cJSON_CreateObject();
            cJSON_AddItemToArray(all, a);
            cJSON_AddStringToObject(a, "name", advice[i].name);
            cJSON_AddStringToObject(a, "text", advice[i].text);
        }
    return o;
}

static void print_models(const findings *f)
{
    printf("\nLargest models, with %d tokens of context:\n", CONTEXT);
    for (size_t w = 0; w < N_WIDTHS; w++) {
        const double fits = f->best[w].fits, fluent = f->best[w].fluent;
        printf("  %-14s ", widths[w].scheme);
        if (!(fits > 0)) {
            printf("none fits\n");
            continue;
        }
        printf("%g B parameters fit", fits);
        if (f->read_s > 0) printf(" (at most %.1f tokens/s)", tokens_s(f, fits, widths[w].bits));
        if (fluent > 0 && fluent < fits)
            printf("; %g B run at up to %.0f tokens/s", fluent,
                   tokens_s(f, fluent, widths[w].bits));
        printf("\n");
    }
    printf("  Of mixtures of experts, the parameters that a token uses set the speed. "
           "`llmq plan MODEL` is exact.\n");
}

static void print_text(const findings *f)
{
    char a[32], b[32];
    bool any = false;
    printf("%-16s llmq %s\n%-16s %s: %d core%s, %d thread%s\n", "program", LLMQ_VERSION,
           "processor", f->cpu, f->cores, f->cores == 1 ? "" : "s", f->threads,
           f->threads == 1 ? "" : "s");
    printf("%-16s %s of %s\n", "kernels", k_name(), k_list());
    printf("%-16s %s free of %s", "memory", opt_size_text(a, sizeof a, (double)f->memory),
           opt_size_text(b, sizeof b, (double)f->total));
    if (f->read_s > 0)
        printf(", read at %.1f GB/s; products of 4-bit weights at %.0f GFLOP/s", f->read_s / 1e9,
               f->flops / 1e9);
    printf("\n%-16s %s\n", "devices", f->devices);
    if (f->nvidia) printf("%-16s %s\n", "NVIDIA driver", f->driver[0] ? f->driver : "none");
    if (f->cache[0])
        printf("%-16s %s, %s free%s\n", "models by name", f->cache,
               opt_size_text(a, sizeof a, (double)f->disk),
               f->offline ? "; offline"
               : f->token ? ", with a token"
                          : "; no token, which gated models need (HF_TOKEN)");
    else
        printf("%-16s none: %s\n", "models by name", f->no_cache.msg);
    print_models(f);
    for (size_t i = 0; i < LQ_COUNT(advice); i++)
        if (advice[i].holds(f)) {
            printf("%s  - %s\n", any ? "" : "\nTo look at:\n", advice[i].text);
            any = true;
        }
    if (!any) printf("\nNothing is missing.\n");
}

typedef struct {
    bool quick;
} doctor_opts;
#define F(field) offsetof(doctor_opts, field)
static const opt_row rows[] = {
    { "quick", 0, OPT_FLAG, F(quick), .help = "measure nothing: no speeds are said" },
};

static lq_status doctor_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const doctor_opts *o = opts;
    findings *f = calloc(1, sizeof *f);
    if (!f) return lq_fail(err, LQ_ENOMEM, "no memory");
    lq_status s = k_init(NULL, err);
    if (!s) s = find(f, c->threads, o->quick, err);
    if (!s && c->json)
        s = cmd_print_json(as_json(f), err);
    else if (!s)
        print_text(f);
    free(f);
    return s;
}

const cmd_row cmd_doctor = {
    .name = "doctor",
    .summary = "what this machine can do, what it lacks, the largest models to try",
    .details =
        "Speeds are measured (two seconds); those of models are what reading their weights "
        "allows. A model fits with its weights, a cache of 8192 tokens as Llama 3 has it and "
        "half a GiB of scratch.",
    .groups = { OPT_GROUP("Options", rows, 0) },
    .examples = "llmq doctor\0"
                "llmq doctor --quick --json\0",
    .opts_bytes = sizeof(doctor_opts),
    .run = doctor_run,
    .processes = CMD_EACH,
};
