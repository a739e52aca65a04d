/* tools/server/serve_limits.c - see serve_limits.h. Options come from the command's own table: every one
 * that is a number bounds something, unless `no_limits` says what else it is. */
#include "tools/server/serve_limits.h"

#include "base/json.h"
#include "runtime/limits.h"

typedef struct {
    const char *name, *option; /* option NULL: fixed */
    double def, value;         /* as they are; def without meaning for what is fixed: the value */
    const char *memory;        /* key of the part that it bounds; NULL: none of its own */
} limit;

typedef void (*each)(void *user, const limit *l);

/* ---- which part of the memory a limit bounds ---- */
static const struct {
    const char *name, *part;
} parts[] = {
    { "max-connections", "connections_bytes" },
    { "max-body-size", "bodies_bytes" },
    { "request-memory", "bodies_bytes" },
    { "max-model-len", "kv_bytes" },
    { "kv-cache-memory", "kv_bytes" },
    { "block-size", "kv_bytes" },
    { "max-num-seqs", "running_bytes" },
    { "num-speculative-tokens", "running_bytes" },
    { "max-num-batched-tokens", "step_bytes" },
    { "queue", "waiting_bytes" },
    { "HTTP_CONN_MEMORY_MAX", "connections_bytes" },
    { "SMP_MAX_LOGPROBS", "running_bytes" },
    { "API_MAX_IDS", "waiting_bytes" },
    { "API_MAX_STOPS", "waiting_bytes" },
    { "API_MAX_STOP_BYTES", "waiting_bytes" },
    { "API_MAX_BAD_WORDS", "waiting_bytes" },
    { "response-store", "responses_bytes" },
    { "API_STORE_BYTES", "responses_bytes" },
    { "file-store", "files_bytes" },
    { "GR_MAX_TREE_BYTES", "grammars_bytes" },
    { "GR_MAX_CLOSURES", "grammars_bytes" },
    { "GR_MAX_ALL_BYTES", "grammars_bytes" },
    { "TP_MAX_BYTES", "templates_bytes" },
    { "TP_MAX_OUTPUT", "templates_bytes" },
    { "TP_MAX_TREE_BYTES", "templates_bytes" },
    { "bytes of a stream that wait for its client", "streams_bytes" },
    { "threads that serve connections", "stacks_bytes" },
    { "bytes that one body's JSON may take", "bodies_bytes" },
};

static const char *part_of(const char *name)
{
    for (size_t i = 0; i < LQ_COUNT(parts); i++)
        if (strcmp(parts[i].name, name) == 0) return parts[i].part;
    return NULL;
}

/* ---- options ---- */
static const char *const no_limits[] = { "port", "waiting-served-ratio", "batch-wait-ms",
                                         "gpu-layers", "tensor-parallel-size" };

static bool is_limit(const opt_row *r)
{
    if (r->type != OPT_INT && r->type != OPT_SIZE && r->type != OPT_FLOAT) return false;
    for (size_t i = 0; i < LQ_COUNT(no_limits); i++)
        if (strcmp(r->name, no_limits[i]) == 0) return false;
    return strncmp(r->name, "test-", 5) != 0;
}

static double number(const opt_row *r, const void *field)
{
    int64_t i;
    size_t z;
    double x;
    if (r->type == OPT_FLOAT) return memcpy(&x, field, sizeof x), x;
    if (r->type == OPT_SIZE) return memcpy(&z, field, sizeof z), (double)z;
    memcpy(&i, field, sizeof i);
    return (double)i;
}

static double default_of(const opt_row *r)
{
    size_t z = 0;
    double x = 0;
    if (r->def && r->type == OPT_SIZE && opt_parse_size(r->def, &z)) return (double)z;
    if (r->def && opt_parse_float(r->def, &x)) return x;
    return 0;
}

/* What was left open is decided by now. */
static double decided(const char *name, double given, const budget *b, const http_opts *h)
{
    if (strcmp(name, "max-model-len") == 0) return (double)b->engine.max_len;
    if (strcmp(name, "kv-cache-memory") == 0) return (double)b->engine.kv_bytes;
    if (strcmp(name, "num-speculative-tokens") == 0) return (double)b->engine.guesses;
    if (strcmp(name, "max-connections") == 0) return h->max_connections;
    return given;
}

static void each_option(const cmd_row *cmd, const void *opts, const budget *b, const http_opts *h,
                        each f, void *user)
{
    for (const opt_group *g = cmd->groups; g->rows; g++)
        for (size_t i = 0; i < g->n; i++) {
            const opt_row *r = &g->rows[i];
            if (!is_limit(r)) continue;
            const double given = number(r, (const uint8_t *)opts + g->base + r->off);
            f(user, &(limit){ r->name, r->name, default_of(r), decided(r->name, given, b, h),
                              part_of(r->name) });
        }
}

/* ---- what is fixed ---- */
static void each_fixed(const http_opts *h, each f, void *user)
{
    const limit rows[] = {
        { "seconds that a head may take", NULL, 0, h->header_seconds, NULL },
        { "seconds that a body may take", NULL, 0, h->body_seconds, NULL },
        { "seconds of an idle connection, or of a client that reads nothing", NULL, 0,
          h->idle_seconds, NULL },
        { "bytes of a stream that wait for its client", NULL, 0, (double)h->max_backlog, NULL },
        { "bytes that one body's JSON may take", NULL, 0, (double)h->max_claim, NULL },
        { "threads that serve connections", NULL, 0, h->threads, NULL },
        { "JS_DEPTH: nesting of JSON", NULL, 0, (double)JS_DEPTH, NULL },
        { "JS_MAX_VALUES: values of JSON", NULL, 0, (double)JS_MAX_VALUES, NULL },
    };
    for (size_t i = 0; i < LQ_COUNT(rows); i++) {
        limit l = rows[i];
        l.def = l.value;
        l.memory = part_of(l.name);
        f(user, &l);
    }
#define X(name, value, what) \
    f(user, &(limit){ #name ": " what, NULL, (double)(value), (double)(value), part_of(#name) });
    LIMITS(X)
#undef X
}

/* ---- both forms ---- */
static void print_one(void *user, const limit *l)
{
    (void)user;
    char text[160];
    snprintf(text, sizeof text, "%s%s", l->option ? "--" : "", l->name);
    printf("%-72s %12.15g %12.15g  %s\n", text, l->value, l->def, l->memory ? l->memory : "");
}

void limits_print(const cmd_row *cmd, const void *opts, const http_opts *http, const budget *b)
{
    printf("%-72s %12s %12s  %s\n", "limit (those of options have --, others are fixed)", "now",
           "default", "bounds");
    each_option(cmd, opts, b, http, print_one, NULL);
    each_fixed(http, print_one, NULL);
    printf("\nmemory\n");
    budget_print(b);
}

static void add_one(void *user, const limit *l)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "name", l->name);
    cJSON_AddItemToObject(o, "option",
                          l->option ? cJSON_CreateString(l->option) : cJSON_CreateNull());
    cJSON_AddNumberToObject(o, "default", l->def);
    cJSON_AddNumberToObject(o, "value", l->value);
    cJSON_AddItemToObject(o, "memory",
                          l->memory ? cJSON_CreateString(l->memory) : cJSON_CreateNull());
    if (!cJSON_AddItemToArray(user, o)) cJSON_Delete(o);
}

cJSON *limits_json(const cmd_row *cmd, const void *opts, const http_opts *http, const budget *b)
{
    cJSON *doc = cJSON_CreateObject(), *all = cJSON_AddArrayToObject(doc, "limits");
    if (!all) {
        cJSON_Delete(doc);
        return NULL;
    }
    each_option(cmd, opts, b, http, add_one, all);
    each_fixed(http, add_one, all);
    cJSON_AddItemToObject(doc, "memory", budget_json(b));
    return doc;
}
