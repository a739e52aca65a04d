/* tools/cmd_serve.c - `llmq serve`: the OpenAI-compatible server.
 *
 * It listens first and loads then, so that /health and /ready tell what goes on. The main thread
 * loads, then waits for signals: SIGHUP reads keys and certificate again, SIGUSR1 tells what goes
 * on; the first SIGTERM or SIGINT drains, a second kills. */
#include "base/clock.h"
#include "base/machine.h"
#include "base/path.h"
#include "base/version.h"
#include "kernels/bench/bench.h"
#include "kernels/ops.h"
#include "runtime/engine/spec.h"
#include "runtime/service.h"
#include "tools/cli/engine_opts.h"
#include "tools/cli/follow.h"
#include "tools/cli/gpus.h"
#include "tools/cli/load.h"
#include "tools/cli/outputs.h"
#include "tools/cli/ranks.h"
#include "tools/inflight/inflight.h"
#include "tools/router/router.h"
#include "tools/server/isolate.h"
#include "tools/server/serve_door.h"
#include "tools/server/serve_limits.h"
#include "tools/server/serve_ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#ifdef LLMQ_SCRIPTED /* build/tests/llmq-scripted */
#include "tests/support/scripted.h"
#endif

typedef struct {
    door_opts door;
    router_opts router;
    const char *path;
    int64_t queue, responses;
    double shutdown_timeout, request_timeout, stall_timeout;
    opt_list names;
    bool no_generic_tools, strict_params, strict_schema, dry_run, print_limits;
    size_t files, kv_disk;
    const char *file_dir, *response_dir, *kv_dir, *lora_dir;
    int scheduling, isolation;
    opt_engine engine;
    opt_model model;
    inflight_opts inflight;
    const char *limits;
    const char *script, *load_gate, *engine_gate, *size_gate; /* of llmq-scripted */
} serve_opts;

enum { FCFS, PRIORITY };
enum {
    SAVE_SECONDS =
        1, /* that the KV cache has to go to disk, whatever --shutdown-timeout has left */
    GIVE_UP_SECONDS = 10 /* other ranks that do not answer are waited for */
};
static const char *const schedulings[] = { "fcfs", "priority", NULL };

#define F(field) offsetof(serve_opts, field)
static const opt_row server_rows[] = {
    { "model", 0, OPT_STR, F(path), .arg = "MODEL", .help = "the model, as other servers name it",
      .files = FILES_MODEL },
    { "host", 0, OPT_STR, F(door.host), .def = "127.0.0.1", .arg = "ADDRESS",
      .help = "address to listen on; 0.0.0.0 for all" },
    { "port", 0, OPT_INT, F(door.port), .def = "8000", .hi = 65535,
      .help = "port to listen on; 0 takes any free one and prints it" },
    { "served-model-name", 0, OPT_LIST, F(names), .arg = "NAME",
      .help = "model name in the API (default: the file's name)" },
    { "uds", 0, OPT_STR, F(door.unix_path), .arg = "PATH",
      .help = "listen on a Unix socket instead of an address and a port" },
    { "ssl-certfile", 0, OPT_STR, F(door.cert), .arg = "FILE",
      .help = "serve over TLS with this chain of certificates (PEM); SIGHUP reads it and the key "
              "again" },
    { "ssl-keyfile", 0, OPT_STR, F(door.cert_key), .arg = "FILE",
      .help = "the private key of the certificate (PEM)" },
    { "api-key", 0, OPT_LIST, F(door.keys.keys), .arg = "KEY",
      .help = "key that clients must send (default: no key is needed)" },
    { "api-key-file", 0, OPT_STR, F(door.keys.key_file), .arg = "FILE",
      .help = "more keys, one a line; SIGHUP reads the file again" },
    { "admin-key", 0, OPT_LIST, F(door.keys.admin_keys), .arg = "KEY",
      .help = "key that may also end other clients' requests" },
    { "admin-key-file", 0, OPT_STR, F(door.keys.admin_key_file), .arg = "FILE",
      .help = "more such keys, one a line; SIGHUP reads the file again" },
    { "cors-origin", 0, OPT_LIST, F(door.origins), .arg = "ORIGIN",
      .help = "let pages of this origin call, * for all (default: none)" },
    { "allowed-host", 0, OPT_LIST, F(door.hosts), .arg = "NAME",
      .help = "host name that requests may be sent to, besides localhost, addresses and --host; * "
              "for any (default: any with keys or where others can connect, else none)" },
    { "access-log", 0, OPT_STR, F(door.access_log), .arg = "FILE",
      .help = "one JSON object a line for each request, - for stdout; SIGHUP opens it again" },
    { "web", 0, OPT_ENUM, F(door.web), .def = "auto", .words = door_webs,
      .help =
          "page at / with a chat and live figures; auto: only where no other machine can connect" },
    OPT_CHAT_TEMPLATE(F(model)),
    OPT_TOOL_FORMAT(F(model)),
    OPT_RERANK_TEMPLATE(F(model)),
    OPT_RERANK_LABELS(F(model)),
    { "no-generic-tools", 0, OPT_FLAG, F(no_generic_tools),
      .help = "refuse tools where the chat template knows none" },
    { "strict-params", 0, OPT_FLAG, F(strict_params),
      .help = "refuse requests with parameters of unknown names" },
    { "strict-schema", 0, OPT_FLAG, F(strict_schema),
      .help = "refuse JSON schemas with unknown keywords, and tools whose parameters cannot be "
              "followed" },
    { "response-store", 0, OPT_INT, F(responses), .def = "0", .hi = 1 << 20,
      .help = "keep the latest N of /v1/responses in memory, at most 64 MiB of them, for "
              "previous_response_id; 0: none" },
    { "response-store-dir", 0, OPT_STR, F(response_dir), .arg = "DIR",
      .help = "keep them in this folder, where a restart finds them; default: in memory" },
    { "file-store", 0, OPT_SIZE, F(files), .def = "0", .hi = 0x1p40,
      .help = "keep files of clients, at most so many bytes of them, for /v1/batches; 0: none" },
    { "file-store-dir", 0, OPT_STR, F(file_dir), .arg = "DIR",
      .help = "keep them in this folder, where a restart finds them and goes on with batches; "
              "default: in memory" },
    { "kv-cache-dir", 0, OPT_STR, F(kv_dir), .arg = "DIR",
      .help =
          "keep what leaves the KV cache in this folder, and all of it at the end; prompts that "
          "begin alike read it back, after a restart too" },
    { "kv-cache-disk", 0, OPT_SIZE, F(kv_disk), .def = "0", .hi = 0x1p50,
      .help =
          "with --kv-cache-dir: bytes of that folder at most; what was not used for longest goes "
          "first" },
    { "lora-dir", 0, OPT_STR, F(lora_dir), .arg = "DIR",
      .help = "let administrators load adapters from this folder while the server runs "
              "(POST /v1/load_lora_adapter)" },
    { "max-connections", 0, OPT_INT, F(door.connections), .def = "4096", .lo = 1, .hi = 1 << 20,
      .help = "connections at the same time; more are closed" },
    { "request-timeout", 0, OPT_FLOAT, F(request_timeout), .def = "0", .hi = 1e6,
      .help = "seconds after which a request is ended with 504; 0: never" },
    { "stall-timeout", 0, OPT_FLOAT, F(stall_timeout), .def = "60", .lo = 0.1, .hi = 86400,
      .help = "seconds without a step, while requests run, after which /ready reports a stall" },
    { "shutdown-timeout", 0, OPT_FLOAT, F(shutdown_timeout), .def = "30", .hi = 86400,
      .help = "seconds that running requests get after SIGTERM or SIGINT" },
    { "isolation", 0, OPT_ENUM, F(isolation), .def = "auto", .words = iso_words,
      .help = "give up what a server does not need: new privileges, files that are not named here, "
              "system calls; required: refuse to start where the kernel lacks one of them" },
};
static const opt_row dry_rows[] = {
    { "max-body-size", 0, OPT_SIZE, F(door.max_body), .def = "32M", .lo = 1024, .hi = 1 << 30,
      .help = "bytes of a request's body; more is answered with 413" },
    { "request-memory", 0, OPT_SIZE, F(door.request_memory), .def = "256M", .lo = 1 << 20,
      .hi = 0x1p40,
      .help = "memory of all bodies, their JSON and answers together; beyond it 503" },
    { "machine-limits", 0, OPT_STR, F(limits), .arg = "READ,F32,BF16,INT8",
      .help = "GB/s that this machine reads and Gflop/s of its products, for /metrics; default: "
              "measured at the start" },
    { "print-limits", 0, OPT_FLAG, F(print_limits),
      .help = "print every limit of the server and the memory that it allows, and exit" },
    { "dry-run", 0, OPT_FLAG, F(dry_run),
      .help =
          "print the memory that the server would take, and exit; exit code 3: it does not fit" },
};
static const opt_row queue_rows[] = {
    { "queue", 0, OPT_INT, F(queue), .def = "1024", .lo = 1, .hi = 1 << 20,
      .help = "requests that may wait; more are answered with 503" },
    { "scheduling-policy", 0, OPT_ENUM, F(scheduling), .def = "fcfs", .words = schedulings,
      .help = "order of waiting requests: by arrival, or by \"priority\", lower first" },
};
#ifdef LLMQ_SCRIPTED
static const opt_row test_rows[] = {
    { "test-script", 0, OPT_STR, F(script), .arg = "FILE", .help = "force the draws" },
    { "test-ping", 0, OPT_FLOAT, F(door.ping_seconds), .help = "seconds to a stream's comment" },
    { "test-load", 0, OPT_STR, F(load_gate), .arg = "FILE",
      .help = "load once this file is there" },
    { "test-size", 0, OPT_STR, F(size_gate), .arg = "FILE", .help = "likewise --dry-run" },
    { "test-engine", 0, OPT_STR, F(engine_gate), .arg = "FILE",
      .help = "likewise open the engine, which comes last" },
    { "test-head", 0, OPT_FLOAT, F(door.head_seconds), .help = "seconds that a head may take" },
    { "test-body", 0, OPT_FLOAT, F(door.body_seconds), .help = "seconds that a body may take" },
};
#endif

typedef struct {
    const serve_opts *o;
    const char *path, *named; /* the model; as the user named it */
    load_tok tok;             /* opened before anybody can connect */
    src_source *src;          /* that it lies in, or NULL */
    lm *l;
    door door;
    pool *p;
    eng_opts engine_opts;
    bool mtp; /* the model's MTP head guesses */
    double started;
    int gpus; /* that are open */
    iso_report isolation;
#ifdef LLMQ_SCRIPTED
    test_script *script;
    eng_script hook;
#endif
    char name[128];
    const char *one_name[1];
} serve;

/* ---- --machine-limits ---- */

static lq_status read_limits(bench_limits *l, const char *text, lq_err *err)
{
    double *const to[] = { &l->read_gbytes_s, &l->gflops[MM_F32], &l->gflops[MM_BF16],
                           &l->gflops[MM_I8] };
    const char *at = text;
    for (size_t i = 0; i < LQ_COUNT(to); i++) {
        char *end;
        *to[i] = strtod(at, &end);
        const bool last = i + 1 == LQ_COUNT(to);
        if (end == at || !(*to[i] >= 0 && *to[i] < 1e9) || *end != (last ? 0 : ','))
            return lq_fail(err, LQ_EUSAGE,
                           "--machine-limits: expected READ,F32,BF16,INT8 in 1e9 a second, found "
                           "'%.80s'",
                           text);
        at = end + 1;
    }
    return LQ_OK;
}

/* As the option has them. */
static void limits_text(char *out, size_t n, const bench_limits *l)
{
    snprintf(out, n, "%.4g,%.4g,%.4g,%.4g", l->read_gbytes_s, l->gflops[MM_F32], l->gflops[MM_BF16],
             l->gflops[MM_I8]);
}

/* ---- start ---- */

static bool log_request(void *user, const http_log_line *l)
{
    prog_say(LOG_DEBUG, "%s %s %d %.3fs %zuB %s", l->method, l->path, l->status, l->seconds,
             l->bytes, l->request_id);
    return ops_log_write(&((serve *)user)->door.log, l);
}

/* Before any thread of our own starts. */
static lq_status isolate(serve *v, lq_err *err)
{
    const serve_opts *o = v->o;
    if (o->file_dir) (void)mkdir(o->file_dir, 0700); /* api_open says what is wrong with it */
    if (o->response_dir) (void)mkdir(o->response_dir, 0700);
    if (o->kv_dir) {
        const lq_status s = lq_private_folder(o->kv_dir, err);
        if (s) return lq_wrap(err, s, "--kv-cache-dir");
    }
    iso_path paths[DOOR_PATHS + 10] = {
        { v->path, ISO_MODEL },
        { o->engine.draft, ISO_MODEL },
        { o->model.tokenizer, ISO_MODEL },
        { o->model.chat_template, ISO_MODEL },
        { o->model.rerank_template, ISO_MODEL },
        { o->file_dir, ISO_STORE },
        { o->response_dir, ISO_STORE },
        { o->kv_dir, ISO_STORE },
        { o->lora_dir, ISO_MODEL },
#ifdef LLMQ_SCRIPTED
        { o->script, ISO_MODEL },
#endif
    };
    door_paths(&o->door, paths + LQ_COUNT(paths) - DOOR_PATHS);
    const size_t n = LQ_COUNT(paths), n_loras = (size_t)o->engine.loras.n;
    iso_path *all = calloc(n + n_loras, sizeof *all);
    if (!all) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(all, paths, sizeof paths);
    for (size_t i = 0; i < n_loras; i++) /* NAME=PATH */
        all[n + i] = (iso_path){ strchr(o->engine.loras.v[i], '=') + 1, ISO_MODEL };
    const iso_want w = {
        .mode = (iso_mode)o->isolation,
        .paths = all,
        .n = n + n_loras,
        .gpus = v->gpus,
        .ranks = follow_ranks() != NULL,
    };
    const lq_status s = iso_files(&v->isolation, &w, err);
    free(all);
    return s;
}

/* As budget_make of the server's model. */
static lq_status budget_with(budget *b, const serve *v, bool mtp, const eng_opts *e,
                             const load_opts *on, const cmd_ctx *c, lq_err *err)
{
    const http_opts ho = door_limits(&v->o->door);
    const int own = follow_threads(c), threads = own ? own : machine_cpus();
    return budget_make(b, v->path, v->o->engine.draft, mtp, e, &ho, on, opt_given(c, "verify"),
                       v->o->model.rope, threads, err);
}

/* Nobody said who guesses: the model's MTP head does, where it has one that leaves the context as it
 * is and fits the memory. */
static void choose_head(serve *v, budget *b, const cmd_ctx *c)
{
    eng_opts with = v->engine_opts;
    budget head;
    lq_err ignored;
    with.guesses = SPEC_DEFAULT;
    if (v->o->engine.mtp != OPT_UNSET || v->engine_opts.guesses || follow_ranks()) return;
    if (budget_with(&head, v, true, &with, NULL, c, &ignored)) return;
    if (head.engine.max_len < b->engine.max_len || (head.memory && head.held > head.memory)) return;
    v->engine_opts.guesses = SPEC_DEFAULT;
    v->mtp = true;
    *b = head;
}

static lq_status budget_of(budget *b, serve *v, const cmd_ctx *c, lq_err *err)
{
    const load_opts parts = { .processes = follow_ranks() };
    lq_status s =
        budget_with(b, v, v->mtp, &v->engine_opts, follow_ranks() ? &parts : NULL, c, err);
    if (s) return s;
    choose_head(v, b, c);
    return LQ_OK;
}

/* The same on a GPU, or, where there is a choice and that does not do, on the CPU. */
static lq_status budget_of_device(budget *b, serve *v, const cmd_ctx *c, lq_err *err)
{
    const load_opts on = load_opts_of(c, &v->o->model);
    lq_err why;
    if (!opt_may_leave_cpu(&v->o->model)) return budget_of(b, v, c, err);
    lq_status s = budget_with(b, v, v->mtp, &v->engine_opts, &on, c, &why);
    if (s && strcmp(on.device, "auto") == 0) {
        prog_say(LOG_INFO, "device: cpu (%s)", why.msg);
        return budget_of(b, v, c, err);
    }
    if (s) *err = why;
    return s;
}

static lq_status dry_run(serve *v, const cmd_ctx *c, lq_err *err)
{
    budget b;
    const http_opts http = door_limits(&v->o->door);
#ifdef LLMQ_SCRIPTED
    test_script_wait(v->o->size_gate, NULL);
#endif
    lq_status s = opt_model_start(&v->o->model, err);
    if (s) return s;
    opt_note_device(&v->o->model);
    s = budget_of_device(&b, v, c, err);
    if (s) return s;
    budget_add_stores(&b, v->o->response_dir ? 0 : v->o->responses,
                      v->o->file_dir ? 0 : v->o->files);
    if (c->json)
        return cmd_print_json(
            v->o->print_limits ? limits_json(c->cmd, v->o, &http, &b) : budget_json(&b), err);
    if (v->o->print_limits)
        limits_print(c->cmd, v->o, &http, &b);
    else
        budget_print(&b);
    return LQ_OK;
}

/* Before a weight is read: what does not fit is said now, and what was left open is decided. On a
 * device it is when its memory is at hand. */
static lq_status fit(serve *v, const cmd_ctx *c, lq_err *err)
{
    budget b;
    lq_status s = budget_of(&b, v, c, err);
    if (s) return s;
    if (v->engine_opts.max_len == ENG_LEN_AUTO)
        prog_say(LOG_INFO, "--max-model-len auto: %lld tokens, the longest that %s",
                 (long long)b.engine.max_len,
                 b.engine.max_len == b.model_len ? "the model has"
                 : v->engine_opts.kv_bytes       ? "--kv-cache-memory holds"
                                                 : "the memory holds");
    v->engine_opts = b.engine;
    if (v->mtp && v->o->engine.mtp == OPT_UNSET)
        prog_say(LOG_INFO, "--speculative-mtp: the model has a head that guesses");
    return LQ_OK;
}

/* What is wrong with the small files of the model is said before anybody can connect. */
static lq_status open_text(serve *v, lq_err *err)
{
    gen_defaults gen;
    const src_opts how = { .need_config = true,
                           .no_tensors = true,
                           .tokenizer = v->o->model.tokenizer };
    lq_status s = src_open(&v->src, v->path, &how, err);
    if (!s) s = load_gen(&gen, v->src, v->path, err);
    if (!s) s = load_tok_open(&v->tok, v->src, v->path, err);
    if (s == LQ_ENOENT && v->src) s = LQ_OK; /* a model without: lm_load says so */
    if (v->src && v->tok.blob) {             /* nothing of it is used any more */
        src_close(v->src);
        v->src = NULL;
    }
    return s;
}

static void note_disk(const char *text)
{
    prog_say(LOG_WARN, "--kv-cache-dir: not written: %s", text);
}

/* The API says each thing once. */
static void note_once(void *user, const char *text)
{
    (void)user;
    prog_say(LOG_INFO, "%s", text);
}

static lq_status listen_first(serve *v, lq_err *err)
{
    const serve_opts *o = v->o;
    v->one_name[0] = load_name(v->name, sizeof v->name, v->named);
    api_opts ao = { .names = o->names.n ? o->names.v : v->one_name,
                    .n_names = o->names.n ? o->names.n : 1,
                    .version = LLMQ_VERSION,
                    .no_generic_tools = o->no_generic_tools,
                    .strict_params = o->strict_params,
                    .strict_schema = o->strict_schema,
                    .priorities = o->scheduling == PRIORITY,
                    .kept_responses = o->responses,
                    .kept_dir = o->response_dir,
                    .file_bytes = o->files,
                    .file_dir = o->file_dir,
                    .stall_seconds = o->stall_timeout,
                    .request_seconds = o->request_timeout,
                    .log = log_request,
                    .note = note_once,
                    .user = v };
    lq_status s = door_read(&v->door, &o->door, v->named, err);
    if (!s) s = lm_open(&v->l, &ao, err);
    if (s) return s;
    http_opts ho = { .log = api_log, .tick = api_tick, .app = lm_api(v->l) };
    ho.routes = api_routes(door_shows_page(&o->door), &ho.n_routes);
    s = door_open(&v->door, &ho, err);
    if (s) return s;
    api_set_http(lm_api(v->l), v->door.http);
    prog_say(LOG_INFO, "listening on %s, loading %s", v->door.url, v->named);
    return LQ_OK;
}

#ifdef LLMQ_SCRIPTED
static lq_status open_script(void *user, const tok_tokenizer *t, int64_t vocab, eng_opts *e,
                             lq_err *err)
{
    serve *v = user;
    test_script_wait(v->o->engine_gate, NULL);
    if (!v->o->script) return LQ_OK;
    e->script = &v->hook;
    return test_script_open(&v->script, &v->hook, v->o->script, t, vocab, pool_threads(v->p), err);
}
#endif

/* The machine's limits beside which /metrics puts what it does: tens of milliseconds, unless it is told. */
static lq_status find_limits(bench_limits *all, const serve_opts *o, pool *p, lq_err *err)
{
    enum { READ_BYTES = 64 << 20 };
    bench_limits one;
    if (o->limits) return read_limits(all, o->limits, err);
    return bench_limits_run(&one, all, &(bench_opts){ .seconds = 0.003, .bytes = READ_BYTES }, p,
                            err);
}

static lq_status set_limits(serve *v, lq_err *err)
{
    bench_limits all = { 0 };
    lq_status s = find_limits(&all, v->o, v->p, err);
    if (s) return s;
    const mm_acts acts = all.gflops[v->engine_opts.acts] > 0 ? v->engine_opts.acts : MM_F32;
    api_set_limits(lm_api(v->l), 1e9 * all.read_gbytes_s, 1e9 * all.gflops[acts]);
    return LQ_OK;
}

/* Of GPUs that have all layers their maker's, where it is known: what else would be a limit is not. */
static void tell_limits(serve *v)
{
    const model *m = lm_weights(v->l);
    const dev *d = model_dev(m);
    if (!d) return;
    const gpu_row *known = model_first_on(m) ? NULL : gpu_find(d->name);
    const int n = dev_ranks(d);
    api_set_limits(lm_api(v->l), known ? 1e9 * n * known->gbytes_s : 0,
                   known ? 1e12 * n * known->tflops : 0);
}

/* All threads are there, and no request has reached the model yet. */
static lq_status give_up_calls(void *user, lq_err *err)
{
    serve *v = user;
    return iso_calls(&v->isolation,
                     &(iso_want){ .mode = (iso_mode)v->o->isolation, .gpus = v->gpus }, err);
}

static lq_status load(serve *v, const cmd_ctx *c, lq_err *err)
{
    lq_status s = load_start(&v->p, c, &v->o->model, err);
    const bool on_cpu = !opt_may_leave_cpu(&v->o->model);
    if (!s && on_cpu) s = fit(v, c, err);
    lm_source src = { .path = v->path,
                      .load = load_opts_of(c, &v->o->model),
                      .p = v->p,
                      .tok = &v->tok,
                      .draft = v->o->engine.draft,
                      .mtp = v->mtp,
                      .adapters = opt_adapters(&v->o->engine, v->o->lora_dir),
                      .engine = v->engine_opts,
                      .job = c->job,
                      .before_ready = give_up_calls,
                      .user = v };
#ifdef LLMQ_SCRIPTED
    test_script_wait(v->o->load_gate, c->job); /* as what is read there */
    src.before_engine = open_script;
#endif
    if (!s && strncmp(opt_device(&v->o->model), "cuda", 4) != 0) s = set_limits(v, err);
    if (!s) s = lm_load(v->l, &src, err);
    if (s) return s;
    tell_limits(v);
    const api_model *m = lm_model(v->l);
    prog_say(
        LOG_INFO,
        "ready: %s on %s, context %lld, %lld KV blocks of %lld tokens, kernels %s, threads %d, "
        "device %s, after %.2f s",
        v->o->names.n ? v->o->names.v[0] : v->name, v->door.url, (long long)m->max_len,
        (long long)m->kv_blocks, (long long)m->block_size, k_name(), pool_threads(v->p), m->device,
        lq_now() - v->started);
    door_ready(&v->isolation, (iso_mode)v->o->isolation);
    return LQ_OK;
}

/* ---- while it runs ---- */

static void say_state(serve *v)
{
    eng_stats s;
    http_stats h;
    eng_stats_get(lm_engine(v->l), &s);
    http_stats_get(v->door.http, &h);
    prog_say(LOG_WARN,
             "state: %lld running, %lld waiting, %lld of %lld KV blocks in use, step %llu %.3f s "
             "ago, %lld connections with %lld open requests",
             (long long)s.running, (long long)s.waiting, (long long)s.kv_blocks_used,
             (long long)s.kv_blocks, (unsigned long long)s.steps, s.last_step_age,
             (long long)h.connections, (long long)h.open);
}

/* Until a signal, or, LQ_EDEVICE, until the device has failed. */
static lq_status wait_for_stop(serve *v, const cmd_ctx *c, lq_err *err)
{
    eng_stats s;
    while (!lq_stopped(c->job)) { /* any thread may have taken the signal: look now and then */
        nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
        if (ops_hangup()) door_reload(&v->door);
        if (ops_dump()) say_state(v);
        eng_stats_get(lm_engine(v->l), &s);
        if (s.lost) return lq_fail(err, LQ_EDEVICE, "%s", s.why.msg);
    }
    return LQ_OK;
}

/* ---- end ---- */

enum { LOST_SECONDS = 5, LOST_END_SECONDS = 5 };

/* A rank is gone: whoever asks /ready now and then sees it say so (503, "lost") before the port is. */
static void stay_lost(const lq_job *job)
{
    const double until = lq_now() + LOST_SECONDS;
    while (!lq_stopped(job) && lq_now() < until)
        nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
}

static void drain(serve *v)
{
    double until = lq_now() + v->o->shutdown_timeout;
    bool idle = false;
    ops_notify("STOPPING=1");
    prog_say(LOG_INFO, "draining: running requests have %.0f s; a second signal ends at once",
             v->o->shutdown_timeout);
    api_drain(lm_api(v->l));
    http_drain(v->door.http);
    do {
        double left = until - lq_now();
        idle = eng_drain(lm_engine(v->l), left < 0 ? 0 : left < 0.5 ? left : 0.5);
    } while (!idle && lq_now() < until);
    if (!idle) {
        prog_say(LOG_WARN, "the time is up: what still runs is aborted");
        api_abort(lm_api(v->l));
    }
    http_wait_idle(v->door.http, 2); /* the last answers go out */
    eng_save_until(lm_engine(v->l), fmax(until, lq_now() + SAVE_SECONDS));
}

static void close_all(serve *v)
{
    door_shut(&v->door); /* before the engine: it still cancels */
    lm_close(v->l);
    load_tok_close(&v->tok);
    src_close(v->src);
    pool_close(v->p);
    door_close(&v->door);
#ifdef LLMQ_SCRIPTED
    test_script_close(v->script);
#endif
}

static lq_status check_one(const cmd_ctx *c, const serve_opts *o, lq_err *err)
{
    static const char *const several[] = { "max-loaded", "models-memory", "idle-unload",
                                           "load-timeout" };
    if (!o->path == !c->argc)
        return lq_fail(err, LQ_EUSAGE, "expected one MODEL, as an argument or with --model: %s",
                       c->cmd->args[0].help);
    for (size_t i = 0; i < LQ_COUNT(several); i++)
        if (opt_given(c, several[i]))
            return lq_fail(err, LQ_EUSAGE,
                           "--%s: expected several models: --models, or a folder of them",
                           several[i]);
    return LQ_OK;
}

/* What belongs to one model's server, or is kept where no later request would find it. */
static lq_status check_several(const cmd_ctx *c, const serve_opts *o, lq_err *err)
{
    static const char *const single[] = {
        "model",    "served-model-name", "dry-run",          "print-limits",
        "quantize", "quantize-cache",    "speculative-model"
    };
    if (o->router.file && c->argc)
        return lq_fail(err, LQ_EUSAGE, "--models: expected no MODEL beside it, found '%.100s'",
                       c->argv[0]);
    if (opt_given(c, "lora"))
        return lq_fail(
            err, LQ_EUSAGE,
            "--lora: expected one model, found several: \"adapters\" in the list of "
            "--models says which model they are of, --lora-dir lets them be loaded later");
    for (size_t i = 0; i < LQ_COUNT(single); i++)
        if (opt_given(c, single[i]))
            return lq_fail(err, LQ_EUSAGE, "--%s: expected one model, found several", single[i]);
    return LQ_OK;
}

static lq_status serve_check(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const serve_opts *o = opts;
    eng_opts e;
    lq_status s = o->router.file || (c->argc && router_takes(c->argv[0])) ? check_several(c, o, err)
                                                                          : check_one(c, o, err);
    if (s) return s;
    if (o->file_dir && !o->files)
        return lq_fail(err, LQ_EUSAGE, "--file-store-dir: expected --file-store SIZE beside it");
    if (o->response_dir && !o->responses)
        return lq_fail(err, LQ_EUSAGE,
                       "--response-store-dir: expected --response-store N beside it");
    if (!o->kv_dir != !o->kv_disk)
        return lq_fail(err, LQ_EUSAGE,
                       "--kv-cache-dir DIR and --kv-cache-disk SIZE: expected both, found one");
    bench_limits ignored;
    s = door_check(&o->door, err);
    if (!s && o->limits) s = read_limits(&ignored, o->limits, err);
    if (!s) s = opt_engine_of(&e, &o->engine, &o->model, err);
    if (!s && o->kv_dir && e.no_prefix_cache)
        s = lq_fail(err, LQ_EUSAGE, "--kv-cache-dir goes with --enable-prefix-caching");
    return s;
}

/* Once for all models' servers, which are started often. "": each finds them. */
static lq_status limits_for_all(char *out, size_t n, const cmd_ctx *c, const serve_opts *o,
                                lq_err *err)
{
    bench_limits all = { 0 };
    pool *p = NULL;
    out[0] = 0;
    if (o->limits || opt_may_leave_cpu(&o->model)) return LQ_OK;
    lq_status s = opt_model_start(&o->model, err);
    if (!s) s = pool_open(&p, c->threads, err);
    if (!s) s = find_limits(&all, o, p, err);
    if (!s) limits_text(out, n, &all);
    pool_close(p);
    return s;
}

static lq_status serve_several(const cmd_ctx *c, const serve_opts *o, lq_err *err)
{
    char limits[128];
    const int64_t seqs = o->queue < o->engine.max_seqs ? o->queue : o->engine.max_seqs;
    ops_all_files();
    lq_status s = limits_for_all(limits, sizeof limits, c, o, err);
    if (s) return s;
    return router_run(&(router_job){ .c = c,
                                     .opts = o,
                                     .door = &o->door,
                                     .router = &o->router,
                                     .folder = o->router.file ? NULL : c->argv[0],
                                     .isolation = (iso_mode)o->isolation,
                                     .queue = o->queue,
                                     .limits = limits,
                                     .files = o->files,
                                     .files_dir = o->file_dir,
                                     .responses = o->responses,
                                     .responses_dir = o->response_dir,
                                     .batch_window = (int)(seqs / 2),
                                     .shutdown_seconds = o->shutdown_timeout },
                      err);
}

static lq_status follow(const serve *v, const cmd_ctx *c, lq_err *err)
{
    ranks_wait_longer((LOST_SECONDS + LOST_END_SECONDS) * 1000);
    return load_follow(c, &v->o->model, v->path, err);
}

static lq_status serve_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const serve_opts *o = opts;
    serve v = { .o = o,
                .path = o->path   ? o->path
                        : c->argc ? c->argv[0]
                                  : "",
                .door = DOOR_NONE,
                .started = lq_now() };
    bool over = false;
    v.named = load_named(c, v.path);
    ops_signals();
    ops_one_heap();
    lq_status s = opt_engine_of(&v.engine_opts, &o->engine, &o->model, err);
    if (s) return s;
    s = follow_start(&over, c, &o->model, err);
    if (s) return s;
    const bool several = o->router.file || router_takes(v.path);
    if (several && follow_ranks())
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: several models: not over several ranks", v.path);
    if (several) return serve_several(c, o, err);
    v.engine_opts.queue = o->queue;
    v.engine_opts.disk = (eng_disk){ .dir = o->kv_dir, .bytes = o->kv_disk, .note = note_disk };
    v.engine_opts.lora_rank = opt_adapters(&o->engine, o->lora_dir).max_rank;
    v.mtp = opt_engine_mtp(&o->engine);
    ops_all_files();
    const bool only_says = o->dry_run || o->print_limits;
    if (over && !only_says) s = follow(&v, c, err);
    if (over) return s;
    if (only_says) return dry_run(&v, c, err);
    s = opt_open_gpus(&v.gpus, &o->model, err);
    if (!s) s = isolate(&v, err);
    if (!s) s = open_text(&v, err);
    if (!s) s = listen_first(&v, err);
    if (!s) s = load(&v, c, err);
    const bool served = !s;
    if (served) s = wait_for_stop(&v, c, err);
    if (served && s && follow_ranks()) stay_lost(c->job);
    if (served) drain(&v);
    follow_give_up(GIVE_UP_SECONDS +
                   (served && !s ? (int)o->shutdown_timeout : 0)); /* blocks may go to disk */
    close_all(&v);
    return s;
}

static void print_routes(FILE *f)
{
    size_t n;
    const http_route *t = api_routes(true, &n);
    fprintf(f, "\nRoutes (+ no key is needed, ! an administrator's):\n");
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%c %-6s %-29s %s\n",
                t[i].need == HTTP_NOBODY  ? '+'
                : t[i].need == HTTP_ADMIN ? '!'
                                          : ' ',
                t[i].method, t[i].path, t[i].text);
}

const cmd_row cmd_serve = {
    .name = "serve",
    .summary = "serve a model over HTTP, compatible with OpenAI's API",
    .details = "SIGTERM and SIGINT let running requests finish, then end the server; SIGHUP reads keys and the "
               "certificate again; SIGUSR1 says what goes on.",
    .more = print_routes,
    .args = { { "MODEL", 0, 1, OPT_MODEL_HELP, FILES_MODEL } },
    .groups = { OPT_GROUP("Server", server_rows, 0), OPT_GROUP("Queue", queue_rows, 0),
                OPT_GROUP("Several models", router_rows, F(router)),
                OPT_GROUP("Memory", dry_rows, 0),
                OPT_GROUP("Engine", opt_engine_rows, F(engine)),
                OPT_GROUP("Running the model", opt_model_rows, F(model)),
                OPT_GROUP("Quantizing while loading", inflight_rows, F(inflight)),
#ifdef LLMQ_SCRIPTED
                OPT_GROUP("Tests", test_rows, 0),
#endif
    },
    .examples = "llmq serve models/novels-6m\0"
                "llmq serve model.llmq --host 0.0.0.0 --port 8080 --api-key SECRET\0",
    .opts_bytes = sizeof(serve_opts),
    .check = serve_check,
    .run = serve_run,
    .processes = CMD_SHARED,
};
