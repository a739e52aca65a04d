/* publish/handover_files.c */
#include "publish/handover_files.h"

#include "base/json_write.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

const char *const handover_forms[HAND_FORMS + 1] = { "none",  "ray",     "kserve",
                                                     "llm-d", "compose", NULL };

/* ---- engines ---- */
typedef struct {
    const char *name, *image, *tried;
    const char *start[4];
    const char *model, *served, *len, *parts; /* options; model "": none before it */
    const char *key_len, *key_parts;          /* of Ray's engine_kwargs */
    const char *key_model;                    /* NULL: Ray gives it the model itself */
    const char *more[3];
    const char *ray_how, *ray_class; /* NULL: Ray's default */
    bool llm_d;
} engine_row;

static const engine_row engines[] = {
    { .name = "vllm",
      .image = "vllm/vllm-openai:v0.32.0",
      .tried = "vLLM 0.32 ran folders in this layout, on a CPU",
      .start = { "vllm", "serve" },
      .model = "",
      .served = "--served-model-name",
      .len = "--max-model-len",
      .parts = "--tensor-parallel-size",
      .key_len = "max_model_len",
      .key_parts = "tensor_parallel_size",
      .ray_how = "serve deploy THIS; for ray[llm] 2.60",
      .llm_d = true },
    { .name = "sglang",
      .image = "lmsysorg/sglang:v0.5.23",
      .tried = "not tried with SGLang",
      .start = { "python3", "-m", "sglang.launch_server" },
      .model = "--model-path",
      .served = "--served-model-name",
      .len = "--context-length",
      .parts = "--tp-size",
      .key_len = "context_length",
      .key_parts = "tp_size",
      .more = { "--sampling-defaults", "model" },
      .key_model = "model_path",
      .ray_how = "serve deploy THIS; for ray[llm] 2.60 and sglang[all,ray], with "
                 "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES=0 in Ray's environment",
      .ray_class = "ray.llm._internal.serve.engines.sglang:SGLangServer" },
};

enum { LABEL = 48 };

typedef struct {
    lq_buf *b;
    const cJSON *plan, *limits;
    const engine_row *engine;
    const char *path, *folder;
    char name[256], label[LABEL]; /* the folder's; as Kubernetes and Compose take it */
    int64_t parts;
} file;

static const char *text_of(const cJSON *o, const char *key)
{
    const char *v = "";
    js_str(o, key, false, &v, NULL);
    return v;
}

static int64_t max_len(const file *f)
{
    int64_t n = 0;
    js_i64(f->limits, "max_model_len", false, 0, JS_MAX_INT, &n, NULL);
    return n;
}

/* ---- names ---- */
static size_t last_part(const char *path, size_t *end)
{
    size_t at;
    *end = strlen(path);
    while (*end > 1 && path[*end - 1] == '/')
        --*end;
    for (at = *end; at > 0 && path[at - 1] != '/';)
        at--;
    return at;
}

/* The last part of a path; of "." and ".." what that folder is called. */
static void folder_name(char *out, size_t n, const char *path)
{
    char whole[PATH_MAX];
    size_t end, at = last_part(path, &end);
    const size_t len = end - at;
    if (path[at] == '.' && (len == 1 || (len == 2 && path[at + 1] == '.')) &&
        realpath(path, whole)) {
        path = whole;
        at = last_part(path, &end);
    }
    snprintf(out, n, "%.*s", (int)(end - at), path + at);
}

/* Lower-case letters, digits and single '-'; a letter first, no '-' last. */
static void label_of(char out[LABEL], const char *name)
{
    size_t at = 0;
    for (; *name && at + 1 < LABEL; name++) {
        const char c = *name >= 'A' && *name <= 'Z' ? (char)(*name + 32) : *name;
        const bool letter = c >= 'a' && c <= 'z', digit = c >= '0' && c <= '9';
        if (digit && !at) out[at++] = 'm';
        if (letter || digit)
            out[at++] = c;
        else if (at && out[at - 1] != '-')
            out[at++] = '-';
    }
    while (at && out[at - 1] == '-')
        at--;
    out[at] = 0;
    if (!at) snprintf(out, LABEL, "model");
}

/* The folder's label, with the engine's name behind it once. */
static void with_engine(char *out, size_t n, const char *label, const char *engine)
{
    const size_t have = strlen(label), tail = strlen(engine);
    const bool has = have > tail && strcmp(label + have - tail, engine) == 0;
    snprintf(out, n, "%s%s%s", label, has ? "" : "-", has ? "" : engine);
}

void handover_file_name(char *out, size_t n, const cJSON *plan, handover_form form)
{
    const cJSON *first = js_get(plan, "files");
    char name[256], label[LABEL], both[64];
    folder_name(name, sizeof name, first && first->child ? first->child->valuestring : "model");
    label_of(label, name);
    with_engine(both, sizeof both, label, text_of(plan, "engine"));
    snprintf(out, n, "%s.%s.yaml", both, handover_forms[form]);
}

/* ---- YAML ---- */
/* Compose and Kubernetes read "$" and "$(" in texts: "$$" is one. */
static void put(const file *f, const char *s, bool dollars)
{
    lq_buf twice = { 0 };
    for (; *s; s++)
        lq_buf_add(&twice, dollars && *s == '$' ? "$$" : s, dollars && *s == '$' ? 2 : 1);
    lq_buf_add(&twice, "", 1);
    if (twice.oom)
        f->b->oom = true;
    else
        js_put_str(f->b, twice.p);
    lq_buf_free(&twice);
}

static void item(const file *f, const char *before, const char *s)
{
    lq_buf_puts(f->b, before);
    put(f, s, true);
    lq_buf_puts(f->b, "\n");
}

static void number(const file *f, const char *before, const char *name, int64_t v)
{
    lq_buf_printf(f->b, "%s\"%s=%" PRId64 "\"\n", before, name, v);
}

/* A comment stays in its line. */
static void comment(const file *f, const char *s)
{
    lq_buf_puts(f->b, "# ");
    for (; *s; s++)
        lq_buf_add(f->b, (unsigned char)*s < ' ' || *s == 127 ? " " : s, 1);
    lq_buf_puts(f->b, "\n");
}

static void head(const file *f, const char *how)
{
    const cJSON *v;
    lq_buf_printf(f->b, "# Written by `llmq handover %s --emit`; %s.\n# %s.\n", f->engine->name,
                  f->engine->tried, how);
    if (js_get(f->plan, "prepare")->child) comment(f, "first:");
    cJSON_ArrayForEach(v, js_get(f->plan, "prepare")) comment(f, v->valuestring);
    lq_buf_printf(f->b, "# can be divided over this many GPUs (of 1, 2, 4, 8):");
    cJSON_ArrayForEach(v, js_get(f->limits, "tensor_parallel"))
        lq_buf_printf(f->b, " %.0f", v->valuedouble);
    lq_buf_puts(f->b, "\n");
}

static void start(const file *f, const char *before)
{
    for (size_t i = 0; i < LQ_COUNT(f->engine->start) && f->engine->start[i]; i++)
        item(f, before, f->engine->start[i]);
}

/* What the engine must be told of this model. */
static void arguments(const file *f, const char *before, const char *path, const char *served)
{
    const engine_row *e = f->engine;
    if (*e->model) item(f, before, e->model);
    item(f, before, path);
    char name[300]; /* in one: a name may begin with '-' */
    snprintf(name, sizeof name, "%s=%s", e->served, served);
    item(f, before, name);
    number(f, before, e->len, max_len(f));
    number(f, before, e->parts, f->parts);
    lq_buf_printf(f->b, "%s\"--kv-cache-dtype=auto\"\n%s\"--dtype=%s\"\n", before, before,
                  text_of(f->limits, "dtype"));
    for (size_t i = 0; i < LQ_COUNT(e->more) && e->more[i]; i++)
        item(f, before, e->more[i]);
}

/* ---- forms ---- */
static void compose(const file *f)
{
    head(f, "docker compose -f THIS up");
    lq_buf_printf(f->b, "name: \"%s\"\nservices:\n  %s:\n    image: %s\n    entrypoint:\n",
                  f->label, f->engine->name, f->engine->image);
    start(f, "      - ");
    lq_buf_puts(f->b, "    command:\n");
    arguments(f, "      - ", "/model", f->name);
    lq_buf_puts(f->b, "      - \"--host=0.0.0.0\"\n      - \"--port=8000\"\n"
                      "    ports: [\"127.0.0.1:8000:8000\"] # from this machine alone\n"
                      "    volumes:\n      - type: bind\n        source: ");
    char where[9000];
    snprintf(where, sizeof where, "%s%s%s", *f->path == '/' ? "" : f->folder,
             *f->path == '/' ? "" : "/", f->path);
    put(f, where, true);
    lq_buf_printf(f->b,
                  "\n        target: /model\n        read_only: true\n    shm_size: 8gb\n"
                  "    deploy:\n      resources:\n        reservations:\n          devices:\n"
                  "            - driver: nvidia\n              count: %" PRId64
                  "\n              capabilities: [gpu]\n    healthcheck:\n"
                  "      test: [CMD, python3, -c, \"import urllib.request as u; "
                  "u.urlopen('http://127.0.0.1:8000/health')\"]\n"
                  "      interval: 10s\n      start_period: 15m\n    restart: unless-stopped\n",
                  f->parts);
}

static void kserve(const file *f)
{
    const char *engine = f->engine->name;
    char runtime[64], uri[300];
    with_engine(runtime, sizeof runtime, f->label, engine);
    snprintf(uri, sizeof uri, "pvc://models/%s", f->name);
    head(f, "kubectl apply -f THIS; by the schema of KServe 0.21");
    lq_buf_printf(f->b,
                  "apiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata:\n"
                  "  name: %s\nspec:\n  supportedModelFormats:\n    - name: %s\n"
                  "  containers:\n    - name: kserve-container\n      image: %s\n      command:\n",
                  runtime, engine, f->engine->image);
    start(f, "        - ");
    lq_buf_puts(f->b, "      args:\n");
    arguments(f, "        - ", "/mnt/models", "{{.Name}}");
    lq_buf_printf(
        f->b,
        "        - \"--host=0.0.0.0\"\n        - \"--port=8080\"\n      ports:\n"
        "        - containerPort: 8080\n          protocol: TCP\n      resources:\n"
        "        limits:\n          nvidia.com/gpu: \"%" PRId64
        "\"\n      startupProbe:\n        httpGet:\n          path: /health\n          port: 8080\n"
        "        periodSeconds: 10\n        failureThreshold: 180\n      readinessProbe:\n"
        "        httpGet:\n          path: /health\n          port: 8080\n      volumeMounts:\n"
        "        - name: shm\n          mountPath: /dev/shm\n  volumes:\n    - name: shm\n"
        "      emptyDir:\n        medium: Memory\n        sizeLimit: 8Gi\n",
        f->parts);
    lq_buf_printf(f->b,
                  "---\napiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata:\n"
                  "  name: \"%s\"\nspec:\n  predictor:\n    minReplicas: 1\n    maxReplicas: 4\n"
                  "    model:\n      modelFormat:\n        name: %s\n      runtime: %s\n"
                  "      # the claim `models` has the folder\n      storageUri: ",
                  f->label, engine, runtime);
    put(f, uri, false);
    lq_buf_puts(f->b, "\n");
}

/* KServe's template starts vLLM, with TLS where the cluster wants it, and adds these arguments. */
static void llm_d(const file *f)
{
    head(f, "kubectl apply -f THIS; by the schema of KServe 0.21, which runs it with llm-d's "
            "scheduler");
    lq_buf_printf(f->b,
                  "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\nmetadata:\n"
                  "  name: \"%s\"\nspec:\n  model:\n    name: ",
                  f->label);
    put(f, f->label, false);
    lq_buf_puts(f->b, "\n    uri: ");
    char uri[300];
    snprintf(uri, sizeof uri, "pvc://models/%s", f->name);
    put(f, uri, false);
    lq_buf_printf(
        f->b,
        " # the claim `models` has the folder\n  replicas: 2\n  parallelism:\n    tensor: %" PRId64
        "\n  router:\n    gateway: {}\n    route: {}\n    scheduler: {} # by prefix and load\n"
        "  template:\n    containers:\n      - name: main\n        image: %s\n        env:\n"
        "          - name: VLLM_ADDITIONAL_ARGS\n            value: \"%s=%" PRId64
        " --kv-cache-dtype=auto --dtype=%s\"\n        resources:\n          limits:\n"
        "            nvidia.com/gpu: \"%" PRId64 "\"\n",
        f->parts, f->engine->image, f->engine->len, max_len(f), text_of(f->limits, "dtype"),
        f->parts);
}

static void ray(const file *f)
{
    head(f, f->engine->ray_how);
    lq_buf_printf(f->b,
                  "applications:\n  - name: \"%s\"\n    route_prefix: /\n"
                  "    import_path: ray.serve.llm:build_openai_app\n    args:\n"
                  "      llm_configs:\n        - model_loading_config:\n            model_id: ",
                  f->label);
    put(f, f->name, false);
    lq_buf_puts(f->b, "\n            # every node has the folder there\n"
                      "            model_source: ");
    char where[300];
    snprintf(where, sizeof where, "/models/%s", f->name);
    put(f, where, false);
    lq_buf_printf(f->b,
                  "\n          engine_kwargs:\n            %s: %" PRId64
                  "\n            %s: %" PRId64
                  "\n            kv_cache_dtype: auto\n            dtype: %s\n",
                  f->engine->key_len, max_len(f), f->engine->key_parts, f->parts,
                  text_of(f->limits, "dtype"));
    if (f->engine->key_model) {
        lq_buf_printf(f->b, "            %s: ", f->engine->key_model);
        put(f, where, false);
        lq_buf_puts(f->b, "\n");
    }
    if (f->engine->ray_class)
        lq_buf_printf(f->b, "          server_cls: %s\n", f->engine->ray_class);
    lq_buf_puts(f->b, "          deployment_config:\n            autoscaling_config:\n"
                      "              min_replicas: 1\n              max_replicas: 4\n"
                      "            request_router_config: # a conversation stays with its replica\n"
                      "              request_router_class: "
                      "ray.serve.llm.request_router:PrefixCacheAffinityRouter\n");
}

static void (*const forms[HAND_FORMS])(const file *f) = { NULL, ray, kserve, llm_d, compose };

/* ---- the file ---- */
static lq_status check(const file *f, handover_form form, lq_err *err)
{
    const char *why = text_of(f->limits, "refused");
    const cJSON *v, *sizes = js_get(f->limits, "tensor_parallel");
    char list[64] = "";
    if (form == HAND_LLM_D && !f->engine->llm_d)
        return lq_fail(err, LQ_EUSAGE,
                       "--emit llm-d: its template in KServe starts vLLM: expected vllm, found %s "
                       "(--emit kserve has it)",
                       f->engine->name);
    if (*why) return lq_fail(err, LQ_EUNSUPPORTED, "%s: %s", f->engine->name, why);
    if (!lq_utf8_valid(f->path, strlen(f->path), NULL))
        return lq_fail(err, LQ_EUSAGE, "--emit: '%s': YAML is UTF-8: expected such a path",
                       f->path);
    cJSON_ArrayForEach(v, sizes)
    {
        const size_t at = strlen(list);
        if ((int64_t)v->valuedouble == f->parts) return LQ_OK;
        snprintf(list + at, sizeof list - at, "%s%.0f", at ? ", " : "", v->valuedouble);
    }
    return lq_fail(err, LQ_EUSAGE,
                   "--tensor-parallel-size: expected one that cuts no group and no head (of 1, 2, "
                   "4, 8: %s), found %" PRId64,
                   list, f->parts);
}

lq_status handover_file(lq_buf *b, const cJSON *plan, handover_form form, int64_t parts,
                        const char *folder, lq_err *err)
{
    file f = { .b = b, .plan = plan, .limits = js_get(plan, "limits"), .folder = folder };
    for (size_t i = 0; i < LQ_COUNT(engines); i++)
        if (strcmp(engines[i].name, text_of(plan, "engine")) == 0) f.engine = &engines[i];
    if (!f.engine)
        return lq_fail(err, LQ_EUSAGE, "--emit: expected vllm or sglang, found '%s'",
                       text_of(plan, "engine"));
    f.parts = parts;
    f.path = js_get(plan, "files")->child->valuestring;
    folder_name(f.name, sizeof f.name, f.path);
    label_of(f.label, f.name);
    const lq_status s = check(&f, form, err);
    if (s) return s;
    forms[form](&f);
    return b->oom ? lq_fail(err, LQ_ENOMEM, "out of memory") : LQ_OK;
}
