/* tools/cmd_version.c - `llmq version`: what this program is made of and what it found here. */
#include "tools/cmds.h"

#include "base/os.h"
#include "base/version.h"
#include "kernels/device.h"
#include "tools/cli/host.h"

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

/* "13.0" of 13000 */
static void add_cuda_version(cJSON *o, const char *name, int v)
{
    char text[32];
    if (v == 0) return;
    snprintf(text, sizeof text, "%d.%d", v / 1000, v % 1000 / 10);
    cJSON_AddStringToObject(o, name, text);
}

/* What this program was built with and for, and what is here. */
static void add_cuda(cJSON *o)
{
    char text[96];
    int toolkit, driver;
    cJSON_AddBoolToObject(o, "cuda", dev_cuda() != NULL);
    if (!dev_cuda()) return;
    dev_cuda()->versions(&toolkit, &driver);
    add_cuda_version(o, "cuda_toolkit", toolkit);
    if (dev_code()[0]) cJSON_AddStringToObject(o, "cuda_code", dev_code());
    add_cuda_version(o, "cuda_of_driver", driver);
    host_driver(text, sizeof text);
    if (text[0]) cJSON_AddStringToObject(o, "nvidia_driver", text);
}

static cJSON *document(void)
{
    cJSON *o = cJSON_CreateObject();
    char text[2048];
    cJSON_AddStringToObject(o, "version", LLMQ_VERSION);
    cJSON_AddStringToObject(o, "compiler", COMPILER);
    os_cpu_name(text, sizeof text);
    cJSON_AddStringToObject(o, "cpu", text);
    host_isas(text, sizeof text);
    cJSON_AddStringToObject(o, "isa", text);
    cJSON_AddStringToObject(o, "kernels", k_name());
    cJSON_AddStringToObject(o, "kernels_available", k_list());
    cJSON_AddStringToObject(o, "activations", mm_acts_text(opt_acts(&(opt_model){ 0 })));
    cJSON_AddStringToObject(o, "kv_cache_dtype", kv_types_text(opt_kv(&(opt_model){ 0 })));
    add_cuda(o);
    host_devices(text, sizeof text);
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
    .processes = CMD_EACH,
};
