/* tools/cmd_version.c - `llmq version`: what this program is made of and what it found here. */
#include "tools/cmds.h"

#include "base/version.h"
#include "kernels/core/cpu.h"
#include "kernels/device.h"

#include <cjson/cJSON.h>
#include <curl/curl.h>
#include <microhttpd.h>
#include <openblas_config.h>
#include <utf8proc.h>
#include <xxhash.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#ifdef __clang__
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

#if defined(__x86_64__)
/* X(name as both compilers know it) */
#define ISAS(X) \
    X("sse4.2") \
    X("avx2") X("fma") X("avx512f") X("avx512bw") X("avx512vl") X("avx512vnni") X("avx512bf16")
static void isa_list(char *out, size_t n)
{
    out[0] = 0;
#define X(name)                                                    \
    if (__builtin_cpu_supports(name)) {                            \
        size_t used = strlen(out);                                 \
        snprintf(out + used, n - used, used ? " %s" : "%s", name); \
    }
    ISAS(X)
#undef X
}
#elif defined(__aarch64__)
static void isa_list(char *out, size_t n)
{
    snprintf(out, n, "neon%s%s%s", cpu_has_neon_dot() ? " dotprod" : "",
             cpu_has_neon_i8mm() ? " i8mm" : "", cpu_has_neon_bf16() ? " bf16" : "");
}
#else
static void isa_list(char *out, size_t n) { snprintf(out, n, "generic"); }
#endif

/* "model name : ..." of /proc/cpuinfo, or "unknown". */
static void cpu_name(char *out, size_t n)
{
    snprintf(out, n, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) != 0) continue;
        const char *v = strchr(line, ':');
        if (v) snprintf(out, n, "%.*s", (int)strcspn(v + 2, "\n"), v + 2);
        break;
    }
    if (f) fclose(f);
}

/* "cpu", and the GPUs by name or why there are none. */
static void device_list(char *out, size_t n)
{
    lq_err err = { "" };
    const int count = dev_count(&err);
    snprintf(out, n, count ? "cpu" : "cpu (%s)", err.msg);
    for (int i = 0; i < count; i++) {
        dev d;
        char name[16];
        size_t used = strlen(out);
        snprintf(name, sizeof name, "cuda:%d", i);
        if (dev_open(&d, name, &err)) {
            snprintf(out + used, n - used, ", %s", err.msg);
            continue;
        }
        snprintf(out + used, n - used, ", %s %s", name, d.name);
        d.ops->close(&d);
    }
}

/* {"cJSON": "1.7.15", ...} */
static cJSON *libraries(void)
{
    cJSON *o = cJSON_CreateObject();
    char pcre[64] = "", text[64];
    pcre2_config(PCRE2_CONFIG_VERSION, pcre);
    pcre[strcspn(pcre, " ")] = 0;
    unsigned x = XXH_versionNumber();
    cJSON_AddStringToObject(o, "cJSON", cJSON_Version());
    snprintf(text, sizeof text, "%u.%u.%u", x / 10000, x / 100 % 100, x % 100);
    cJSON_AddStringToObject(o, "xxHash", text);
    sscanf(OPENBLAS_VERSION, " OpenBLAS %63s", text);
    cJSON_AddStringToObject(o, "OpenBLAS", text);
    cJSON_AddStringToObject(o, "PCRE2", pcre);
    cJSON_AddStringToObject(o, "utf8proc", utf8proc_version());
    cJSON_AddStringToObject(o, "libmicrohttpd", MHD_get_version());
    cJSON_AddStringToObject(o, "libcurl", curl_version_info(CURLVERSION_NOW)->version);
    return o;
}

static cJSON *document(void)
{
    cJSON *o = cJSON_CreateObject();
    char text[512];
    cJSON_AddStringToObject(o, "version", LLMQ_VERSION);
    cJSON_AddStringToObject(o, "compiler", COMPILER);
    cpu_name(text, sizeof text);
    cJSON_AddStringToObject(o, "cpu", text);
    isa_list(text, sizeof text);
    cJSON_AddStringToObject(o, "isa", text);
    cJSON_AddStringToObject(o, "kernels", k_name());
    cJSON_AddStringToObject(o, "kernels_available", k_list());
    cJSON_AddStringToObject(o, "activations", mm_acts_text(opt_acts(&(opt_model){ 0 })));
    cJSON_AddStringToObject(o, "kv_cache_dtype", kv_dtype_text(opt_kv(&(opt_model){ 0 })));
    cJSON_AddBoolToObject(o, "cuda", dev_cuda() != NULL);
    device_list(text, sizeof text);
    cJSON_AddStringToObject(o, "devices", text);
    cJSON_AddItemToObject(o, "libraries", libraries());
    return o;
}

static void print_text(const cJSON *o)
{
    const cJSON *e;
    cJSON_ArrayForEach(e, o)
    {
        if (cJSON_IsObject(e)) {
            printf("%s:\n", e->string);
            for (const cJSON *l = e->child; l; l = l->next)
                printf("  %-16s %s\n", l->string, cJSON_GetStringValue(l));
        } else if (cJSON_IsString(e)) {
            printf("%-18s %s\n", e->string, e->valuestring);
        } else {
            printf("%-18s %s\n", e->string, cJSON_IsTrue(e) ? "yes" : "not in this build");
        }
    }
}

static lq_status version_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    (void)opts;
    lq_status s = k_init(NULL, err);
    if (s) return s;
    cJSON *doc = document();
    if (c->json) return cmd_print_json(doc, err);
    print_text(doc);
    cJSON_Delete(doc);
    return LQ_OK;
}

const cmd_row cmd_version = {
    .name = "version",
    .summary = "version, libraries, instruction sets found and chosen, devices",
    .examples = "llmq version\0"
                "llmq version --json\0",
    .run = version_run,
};
