/* runtime/api/api_ops.c - what operators ask: /health /ready /version /metrics /load, and / where there is no page. */
#include "runtime/api/api_int.h"

void api_get_root(void *app, http_req *r)
{
    (void)app;
    size_t n;
    const http_route *t = http_routes(r, &n);
    lq_buf w = { 0 };
    lq_buf_puts(&w, "llmq: an OpenAI-compatible server. Routes:\n");
    for (size_t i = 0; i < n; i++)
        lq_buf_printf(&w, "%-6s %-28s %s\n", t[i].method, t[i].path, t[i].text);
    http_reply(r, 200, w.p, w.n, &(http_extra){ .type = "text/plain; charset=utf-8" });
    lq_buf_free(&w);
}

/* Zeros until the model is there. */
static void stats_of(api *a, eng_stats *s)
{
    *s = (eng_stats){ 0 };
    if (atomic_load(&a->has_model)) a->m.backend.stats(a->m.backend.self, s);
}

/* progress: below 0 there is none. */
static void reply_progress(http_req *r, int status, const char *text, const char *reason,
                           double progress)
{
    jw w = { 0 };
    jw_open(&w, '{');
    jw_key(&w, "status");
    jw_cstr(&w, text);
    if (reason) {
        jw_key(&w, "reason");
        jw_cstr(&w, reason);
    }
    if (progress >= 0) {
        jw_key(&w, "progress");
        jw_f64(&w, progress);
    }
    jw_close(&w, '}');
    api_reply(r, status, &w);
}

static void reply_status(http_req *r, int status, const char *text, const char *reason)
{
    reply_progress(r, status, text, reason, -1);
}

void api_get_health(void *app, http_req *r)
{
    (void)app;
    reply_status(r, 200, "ok", NULL);
}

void api_get_ready(void *app, http_req *r)
{
    api *a = app;
    eng_stats s;
    stats_of(a, &s);
    int state = atomic_load(&a->state);
    if (state == API_LOADING)
        reply_progress(r, 503, "loading", "the model is being loaded", atomic_load(&a->progress));
    else if (state == API_DRAINING)
        reply_status(r, 503, "draining", "the server is shutting down");
    else if (s.lost)
        reply_status(r, 503, "lost", s.why.msg);
    else if (s.last_step_age > a->o.stall_seconds)
        reply_status(r, 503, "stalled", "requests are running and no step has ended for too long");
    else
        reply_status(r, 200, "ready", NULL);
}

void api_get_version(void *app, http_req *r)
{
    api *a = app;
    jw w = { 0 };
    jw_open(&w, '{');
    jw_key(&w, "version");
    jw_cstr(&w, a->o.version);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}

void api_delete_request(void *app, http_req *r)
{
    int n = api_gen_abort(app, http_rest(r));
    if (!n) {
        http_error(r, 404, NULL, "request_not_found", "no such request is running");
        return;
    }
    jw w = { 0 };
    jw_open(&w, '{');
    jw_key(&w, "id");
    jw_cstr(&w, http_rest(r));
    jw_key(&w, "aborted");
    jw_i64(&w, n);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}

static double kv_usage(const eng_stats *s)
{
    return s->kv_blocks > 0 ? (double)s->kv_blocks_used / (double)s->kv_blocks : 0;
}

static double kv_waste(const api *a, const eng_stats *s)
{
    const int64_t places = s->kv_blocks_used > 0 ? s->kv_blocks_used * a->m.block_size : 0;
    return places > 0 ? fmin((double)s->kv_unused / (double)places, 1) : 0; /* lines share blocks */
}

void api_get_load(void *app, http_req *r)
{
    eng_stats s;
    stats_of(app, &s);
    jw w = { 0 };
    jw_open(&w, '{');
    jw_key(&w, "server_load");
    jw_i64(&w, s.running + s.waiting);
    jw_key(&w, "running");
    jw_i64(&w, s.running);
    jw_key(&w, "waiting");
    jw_i64(&w, s.waiting);
    jw_key(&w, "kv_cache_usage");
    jw_f64(&w, kv_usage(&s));
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}

static void write_config(lq_buf *w, const api *a)
{
    lq_buf labels = { 0 };
    lq_buf_printf(&labels, "block_size=\"%lld\",num_gpu_blocks=\"%lld\",",
                  (long long)a->m.block_size, (long long)a->m.kv_blocks);
    lq_buf_add(&labels, a->labels.p, a->labels.n); /* with its NUL */
    if (labels.oom)
        w->oom = true;
    else
        met_write_one(w, "gauge", "vllm:cache_config_info", "The cache's settings.", labels.p, 1);
    lq_buf_free(&labels);
}

/* vllm:spec_decode_num_accepted_tokens_per_pos, of the places that guesses have reached. */
static void write_accepted(lq_buf *w, const char *labels, const eng_stats *s)
{
    static const char name[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    lq_buf_printf(w,
                  "# HELP %s Tokens guessed right, by the place of the guess.\n# TYPE %s counter\n",
                  name, name);
    for (size_t i = 0; i < LQ_COUNT(s->right_at) && (i == 0 || s->right_at[i]); i++)
        lq_buf_printf(w, "%s{%s,position=\"%zu\"} %llu\n", name, labels, i,
                      (unsigned long long)s->right_at[i]);
}

/* Of the KV cache on disk. */
static void write_disk(lq_buf *w, const char *labels, const eng_disk_stats *d)
{
    const kvd_stats *f = &d->files;
    const struct {
        const char *type, *name, *help;
        double v;
    } rows[] = {
        { "gauge", "llmq:kv_disk_bytes", "Bytes of all files in the folder.", (double)f->bytes },
        { "gauge", "llmq:kv_disk_files", "Files in the folder.", (double)f->files },
        { "counter", "llmq:kv_disk_hits_total", "Prompts of which blocks were read.",
          (double)f->hits },
        { "counter", "llmq:kv_disk_misses_total", "Prompts of which it had no more than memory.",
          (double)f->misses },
        { "counter", "llmq:kv_disk_slower_total",
          "Prompts that were computed because reading takes longer.", (double)f->slower },
        { "counter", "llmq:kv_disk_tokens_total", "Tokens that were read.", (double)d->tokens },
        { "counter", "llmq:kv_disk_reads_total", "Files read.", (double)f->reads },
        { "counter", "llmq:kv_disk_read_bytes_total", "Bytes of them.", (double)f->read_bytes },
        { "counter", "llmq:kv_disk_read_seconds_total", "Time in reading them.", f->read_seconds },
        { "counter", "llmq:kv_disk_writes_total", "Files written.", (double)f->writes },
        { "counter", "llmq:kv_disk_written_bytes_total", "Bytes of them.",
          (double)f->written_bytes },
        { "counter", "llmq:kv_disk_removed_total", "Files removed to make room.",
          (double)f->removed },
        { "counter", "llmq:kv_disk_damaged_total", "Files that were damaged, and removed.",
          (double)f->damaged },
        { "counter", "llmq:kv_disk_lost_total",
          "Parts of blocks that left memory unwritten, since the disk was behind.",
          (double)f->lost },
        { "counter", "llmq:kv_disk_failed_total", "Writes that failed.", (double)f->failed },
        { "gauge", "llmq:kv_disk_seconds_per_byte", "Pace of reading, as measured.", f->pace },
        { "gauge", "llmq:prefill_seconds_per_token", "Pace of computing, as measured.",
          d->computing },
    };
    for (size_t i = 0; i < LQ_COUNT(rows); i++)
        met_write_one(w, rows[i].type, rows[i].name, rows[i].help, labels, rows[i].v);
}

/* In the format that the client asks for; frees w. */
void api_reply_metrics(http_req *r, lq_buf *w)
{
    const char *accept = http_header(r, "Accept");
    const bool open = accept && strstr(accept, "application/openmetrics-text");
    lq_buf text = { 0 };
    lq_buf_add(w, "", 1);
    if (open && !w->oom) met_open(&text, w->p);
    const lq_buf *b = open ? &text : w;
    if (w->oom || text.oom)
        http_error(r, 503, NULL, NULL, "out of memory");
    else
        http_reply(r, 200, b->p, open ? b->n : b->n - 1,
                   &(http_extra){
                       .type = open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                    : "text/plain; version=0.0.4; charset=utf-8" });
    lq_buf_free(&text);
    lq_buf_free(w);
}

void api_get_metrics(void *app, http_req *r)
{
    api *a = app;
    const char *labels = a->labels.p;
    eng_stats s;
    http_stats h = { 0 };
    http_server *server = atomic_load(&a->http);
    const api_model m = atomic_load(&a->has_model) ? a->m : (api_model){ 0 };
    stats_of(a, &s);
    if (server) http_stats_get(server, &h);
    const struct {
        const char *type, *name, *help;
        double v;
    } rows[] = {
        { "gauge", "vllm:num_requests_running", "Sequences in the batch.", (double)s.running },
        { "gauge", "vllm:num_requests_waiting", "Sequences in the queue.", (double)s.waiting },
        { "gauge", "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", kv_usage(&s) },
        { "counter", "vllm:num_preemptions_total", "Sequences set back to the queue.",
          (double)s.preemptions },
        { "counter", "vllm:prefix_cache_queries_total", "Prompt tokens looked up.",
          (double)s.prefix_queries },
        { "counter", "vllm:prefix_cache_hits_total", "Prompt tokens found.",
          (double)s.prefix_hits },
        { "counter", "vllm:spec_decode_num_drafts_total", "Steps of a sequence with guesses.",
          (double)s.drafts },
        { "counter", "vllm:spec_decode_num_draft_tokens_total", "Tokens guessed.",
          (double)s.guesses },
        { "counter", "vllm:spec_decode_num_accepted_tokens_total", "Tokens guessed right.",
          (double)s.right },
        { "gauge", "llmq:kv_waste_perc",
          "Share of the places in those blocks that hold no token, 0 to 1.", kv_waste(a, &s) },
        { "gauge", "llmq:kv_blocks_cached", "KV blocks that only the prefix cache holds.",
          (double)s.kv_blocks_cached },
        { "counter", "llmq:engine_steps_total", "Steps of the engine.", (double)s.steps },
        { "counter", "llmq:step_seconds_total", "Time in those steps.", s.step_seconds },
        { "counter", "llmq:weights_read_bytes_total", "Bytes of weights that they read.",
          (double)s.steps * m.step_bytes },
        { "counter", "llmq:matmul_flops_total", "Operations of their matrix products.",
          (double)s.rows * m.row_flops + (double)s.logit_rows * m.logits_flops },
        { "gauge", "llmq:ready_seconds", "From the server's start until it could answer.",
          atomic_load(&a->ready_seconds) },
        { "gauge", "llmq:first_request_seconds", "Until the first request's first token.",
          atomic_load(&a->first_seconds) },
        { "gauge", "llmq:last_step_age_seconds", "Time since the last step while busy.",
          s.last_step_age },
        { "counter", "llmq:ranks_sent_bytes_total",
          "Bytes sent to the other processes that share the model.", (double)s.sent },
        { "gauge", "llmq:http_connections", "Open connections.", (double)h.connections },
        { "counter", "llmq:http_requests_total", "HTTP requests.", (double)h.requests },
        { "counter", "llmq:http_unauthorized_total", "Requests without a valid key.",
          (double)h.unauthorized },
        { "counter", "llmq:http_clients_gone_total", "Requests whose client left.",
          (double)h.gone },
        { "counter", "llmq:http_timeouts_total", "Requests that arrived too slowly.",
          (double)h.timeouts },
        { "counter", "llmq:http_slow_readers_total", "Streams cut: not read fast enough.",
          (double)h.overflows },
        { "gauge", "llmq:limit_read_bytes_per_second",
          "Measured when the server started; of a GPU its maker's figure.",
          atomic_load(&a->limit_read) },
        { "gauge", "llmq:limit_flops_per_second", "Likewise, of the arithmetic in use.",
          atomic_load(&a->limit_flops) },
    };
    enum { LIMITS = 2 }; /* the last ones: a limit of 0 would say that all is used without end */
    const size_t n = LQ_COUNT(rows) - (atomic_load(&a->limit_read) > 0 ? 0 : LIMITS);
    lq_buf w = { 0 };
    for (size_t i = 0; i < n; i++)
        met_write_one(&w, rows[i].type, rows[i].name, rows[i].help, labels, rows[i].v);
    write_accepted(&w, labels, &s);
    write_disk(&w, labels, &s.disk);
    api_write_adapters(a, &w);
    if (atomic_load(&a->has_model)) write_config(&w, a);
    met_write(a->met, &w, labels);
    api_reply_metrics(r, &w);
}
