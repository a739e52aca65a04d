/* tools/cmd_batch.c - `llmq batch`: a file of requests to a file of answers, in OpenAI's batch
 * format, on the server's engine without HTTP.
 *
 * Answers are written in the order of their requests, so what was done is a number of lines: the
 * work file OUT.resume has them, OUT.resume.json says of which run they are. A run that is repeated
 * goes on behind the last whole line; at the end the work file becomes OUT. */
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/out_file.h"
#include "base/path.h"
#include "runtime/api/batch_line.h"
#include "runtime/service.h"
#include "tools/cli/engine_opts.h"
#include "tools/cli/load.h"
#include "tools/cli/outputs.h"
#include "tools/cli/shard.h"
#include "tools/inflight/inflight.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_BODY = 32 << 20, MIN_WINDOW = 64 };
/* How each answer and the file of a run's state begin: what else has their names is somebody's. */
#define ANSWER_ID "batch_req_"
#define ANSWER_BEGIN "{\"id\":\"" ANSWER_ID
#define STATE_BEGIN "{\"requests\":\""

typedef struct {
    const char *shard;
    int64_t logprobs;
    opt_list names;
    opt_tri resume;
    opt_engine engine;
    opt_model model;
    inflight_opts inflight;
} batch_opts;

#define F(field) offsetof(batch_opts, field)
static const opt_row rows[] = {
    OPT_CHAT_TEMPLATE(F(model)),
    OPT_TOOL_FORMAT(F(model)),
    OPT_RERANK_TEMPLATE(F(model)),
    OPT_RERANK_LABELS(F(model)),
    { "shard", 0, OPT_STR, F(shard), .arg = "I/N",
      .help = "answer only every N-th request, from the I-th on; 1/1: all; auto: "
              "SLURM_ARRAY_TASK_ID of _COUNT; N alone: JOB_COMPLETION_INDEX says which" },
    { "logprobs", 0, OPT_INT, F(logprobs), .def = "-1", .lo = -1, .hi = SMP_MAX_LOGPROBS,
      .help = "ids and log-probabilities with this many alternatives, for requests that do not set "
              "it; -1: as they set it" },
    { "served-model-name", 0, OPT_LIST, F(names), .arg = "NAME",
      .help = "model name in requests (default: the file's name)" },
    { "resume", 0, OPT_TRI, F(resume),
      .help = "go on with unfinished work of the same run (default); --no-resume: start again" },
};

/* A custom_id, by its hash, and the line that has it. */
typedef struct {
    lq_hash id;
    int64_t line, first; /* first: the line that had it before; 0: none */
} id_use;

typedef struct {
    const batch_opts *o;
    const cmd_ctx *c;
    const char *in, *out;
    int64_t shard, n_shards;
    lm *l;
    FILE *lines, *work;
    char *line; /* the last one read */
    size_t cap;
    int64_t n_lines; /* read so far, empty ones left out */
    id_use *again;   /* [n_again] lines whose custom_id was there before, in order */
    int64_t n_again, cap_again;
    int64_t total, resumed;    /* requests of this shard; those done before */
    int64_t answered, refused; /* with status 200; with another */
    int64_t invalid;           /* lines that are no requests */
    char *target, *work_path, *state_path;
} batch;

/* ---- the requests ---- */

/* The next line that is not empty, number b->n_lines. *n 0: the end. */
static lq_status any_line(batch *b, size_t *n, lq_err *err)
{
    errno = 0;
    for (ssize_t got; (got = getline(&b->line, &b->cap, b->lines)) >= 0;) {
        *n = (size_t)got;
        if (strspn(b->line, " \t\r\n") == *n) continue;
        b->n_lines++;
        return LQ_OK;
    }
    *n = 0; /* the end, or an error: ferror knows nothing of getline's own memory */
    if (!feof(b->lines)) return lq_fail(err, LQ_EIO, "%s: %s", b->in, strerror(errno));
    return LQ_OK;
}

static bool is_mine(const batch *b) { return (b->n_lines - 1) % b->n_shards == b->shard - 1; }

/* The next one of this shard. */
static lq_status next_line(batch *b, size_t *n, lq_err *err)
{
    lq_status s;
    do
        s = any_line(b, n, err);
    while (!s && *n > 0 && !is_mine(b));
    return s;
}

/* Keeps the line's custom_id, if it has one: of all shards, since one stands for all answers. */
static lq_status note_id(batch *b, size_t n, lq_err *err)
{
    cJSON *doc = NULL;
    const char *id = NULL;
    lq_err ignored;
    bool has = !js_parse(&doc, b->line, n, MAX_BODY, JS_UNIQUE, &ignored) &&
               !js_str(doc, "custom_id", true, &id, &ignored);
    lq_status s = LQ_OK;
    if (has && b->n_again == b->cap_again) {
        size_t cap = 2 * (size_t)b->cap_again + 256;
        id_use *more = realloc(b->again, cap * sizeof *more);
        if (!more) s = lq_fail(err, LQ_ENOMEM, "out of memory");
        if (more) b->again = more, b->cap_again = (int64_t)cap;
    }
    if (has && !s)
        b->again[b->n_again++] = (id_use){ lq_hash_bytes(id, strlen(id)), b->n_lines, 0 };
    cJSON_Delete(doc);
    return s;
}

static int by_id(const void *a, const void *b)
{
    const id_use *p = a, *q = b;
    int c = memcmp(&p->id, &q->id, sizeof p->id);
    return c ? c : (p->line > q->line) - (p->line < q->line);
}

static int by_line(const void *a, const void *b)
{
    const id_use *p = a, *q = b;
    return (p->line > q->line) - (p->line < q->line);
}

/* Of all ids to those that were there before. */
static void keep_repeated(batch *b)
{
    int64_t n = 0, first = 0;
    if (b->n_again) qsort(b->again, (size_t)b->n_again, sizeof *b->again, by_id);
    for (int64_t i = 0; i < b->n_again; i++) {
        if (i == 0 || memcmp(&b->again[i].id, &b->again[i - 1].id, sizeof b->again[i].id) != 0) {
            first = b->again[i].line;
            continue;
        }
        b->again[i].first = first;
        id_use kept = b->again[i];
        b->again[n++] = kept;
    }
    b->n_again = n;
    if (n) qsort(b->again, (size_t)n, sizeof *b->again, by_line);
}

/* The line that had this line's custom_id; 0: none. */
static int64_t first_use(const batch *b)
{
    id_use key = { .line = b->n_lines }, *at = NULL;
    if (b->n_again) at = bsearch(&key, b->again, (size_t)b->n_again, sizeof key, by_line);
    return at ? at->first : 0;
}

/* Counts this shard's requests; what they are goes into *h. */
static lq_status survey(batch *b, lq_hash *h, lq_err *err)
{
    size_t n = 0;
    lq_hash both[2] = { *h };
    lq_status s;
    while (!(s = any_line(b, &n, err)) && n > 0) {
        s = note_id(b, n, err);
        if (s) break;
        if (!is_mine(b)) continue;
        both[1] = lq_hash_bytes(b->line, n);
        both[0] = lq_hash_bytes(both, sizeof both);
        b->total++;
    }
    *h = both[0];
    keep_repeated(b);
    rewind(b->lines);
    b->n_lines = 0;
    return s;
}

/* ---- unfinished work ---- */

/* What the answers depend on, as text: work of another run is not gone on with. */
static lq_status describe_run(batch *b, char **text, lq_err *err)
{
    lq_hash h = { { 0 } };
    char hex[33];
    lq_status s = survey(b, &h, err);
    if (s) return s;
    lq_hash_hex(hex, &h);
    jw w = { 0 };
    jw_open(&w, '{');
    jw_key(&w, "requests");
    jw_cstr(&w, hex);
    jw_key(&w, "model");
    jw_cstr(&w, load_named(b->c, b->c->argv[0]));
    jw_key(&w, "weights");
    jw_cstr(&w, lm_model(b->l)->fingerprint);
    jw_key(&w, "logprobs");
    jw_i64(&w, b->o->logprobs);
    jw_key(&w, "names");
    jw_open(&w, '[');
    for (int i = 0; i < b->o->names.n; i++)
        jw_cstr(&w, b->o->names.v[i]);
    jw_close(&w, ']');
    jw_key(&w, "max_model_len");
    jw_i64(&w, b->o->engine.max_len);
    jw_key(&w, "activations");
    jw_i64(&w, opt_acts(&b->o->model));
    jw_key(&w, "kv_cache_dtype");
    jw_i64(&w, opt_kv(&b->o->model));
    jw_close(&w, '}');
    lq_buf_add(&w.b, "\n", 2); /* with the NUL */
    *text = w.b.p;
    if (!w.b.oom) return LQ_OK;
    jw_free(&w);
    *text = NULL;
    return lq_fail(err, LQ_ENOMEM, "out of memory");
}

/* Whole lines of the work file; what follows the last goes. */
static lq_status count_done(batch *b, lq_err *err)
{
    char *line = NULL;
    size_t cap = 0;
    off_t whole = 0;
    for (ssize_t n; (n = getline(&line, &cap, b->work)) > 0 && line[n - 1] == '\n'; whole += n)
        b->resumed++;
    free(line);
    if (ftruncate(fileno(b->work), whole) != 0 || fseeko(b->work, whole, SEEK_SET) != 0)
        return lq_fail(err, LQ_EIO, "%s: %s", b->work_path, strerror(errno));
    if (b->resumed > b->total)
        return lq_fail(err, LQ_EFORMAT, "%s: expected at most %lld lines, found %lld", b->work_path,
                       (long long)b->total, (long long)b->resumed);
    return LQ_OK;
}

static lq_status write_file(const char *path, const char *text, lq_err *err)
{
    FILE *f = fopen(path, "we");
    bool ok = f && fputs(text, f) >= 0;
    if (f && fclose(f) != 0) ok = false;
    return ok ? LQ_OK : lq_fail(err, LQ_EIO, "%s: %s", path, strerror(errno));
}

/* The work file, which this process alone may write; *bytes: what was there before. */
static lq_status lock_work(batch *b, off_t *bytes, lq_err *err)
{
    struct stat held, named;
    const int fd = open(b->work_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    b->work = fd < 0 ? NULL : fdopen(fd, "r+");
    if (!b->work) {
        lq_status s = lq_fail(err, LQ_EIO, "%s: %s", b->work_path, strerror(errno));
        if (fd >= 0) close(fd);
        return s;
    }
    const bool taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (taken || fstat(fd, &held) != 0 || stat(b->work_path, &named) != 0 ||
        held.st_ino != named.st_ino || held.st_dev != named.st_dev)
        return lq_fail(err, LQ_EBUSY, "%s: another llmq batch is writing it", b->work_path);
    *bytes = held.st_size;
    return LQ_OK;
}

/* What was there goes before the file that says what it is: a kill in between leaves no answers
 * that seem to be this run's. */
static lq_status begin_anew(batch *b, const char *run, lq_err *err)
{
    if (ftruncate(fileno(b->work), 0) != 0)
        return lq_fail(err, LQ_EIO, "%s: %s", b->work_path, strerror(errno));
    return write_file(b->state_path, run, err);
}

static lq_status open_work(batch *b, lq_err *err)
{
    char *run = NULL, *before = NULL;
    size_t n;
    off_t bytes = 0;
    lq_err none;
    lq_status s = describe_run(b, &run, err);
    if (!s) s = lock_work(b, &bytes, err);
    bool found = !s && bytes && !lq_read_file(&before, &n, b->state_path, 1 << 20, &none);
    bool same = found && n == strlen(run) && memcmp(before, run, n) == 0;
    bool goes_on = same && opt_tri_or(b->o->resume, true);
    if (found && !goes_on)
        prog_say(LOG_WARN, "%s: %s; it is started over", b->work_path,
                 same ? "there is unfinished work" : "that is unfinished work of another run");
    if (!s) s = goes_on ? count_done(b, err) : begin_anew(b, run, err);
    free(run);
    free(before);
    return s;
}

/* ---- one request ---- */

typedef struct {
    char *id;    /* custom_id, or NULL */
    char *error; /* the line is no request; NULL: it is */
    bool again;  /* for its custom_id was there before */
    bool done;
    lm_answer a;
} slot;

static void slot_free(slot *t)
{
    free(t->id);
    free(t->error);
    free(t->a.body);
    memset(t, 0, sizeof *t);
}

/* Parameters that --logprobs adds to a body. */
static void add_logprobs(jw *w, const cJSON *body, const char *url, int64_t k)
{
    bool chat = strcmp(url, "/v1/chat/completions") == 0;
    if (k < 0 || (!chat && strcmp(url, "/v1/completions") != 0)) return;
    char text[96] = "";
    if (!js_get(body, "logprobs") && chat)
        snprintf(text, sizeof text, "\"logprobs\":true,\"top_logprobs\":%d,", (int)k);
    else if (!js_get(body, "logprobs"))
        snprintf(text, sizeof text, "\"logprobs\":%d,", (int)k);
    lq_buf_puts(&w->b, text);
    if (!js_get(body, "return_token_ids")) lq_buf_puts(&w->b, "\"return_token_ids\":true,");
}

/* The request's body, with what --logprobs adds. */
static lq_status read_request(const batch *b, slot *t, const batch_line *l, jw *body, lq_err *err)
{
    t->again = first_use(b) > 0;
    if (t->again)
        return lq_fail(err, LQ_EVALUE,
                       "custom_id: expected one of its own, found \"%.64s\" of line %lld", l->id,
                       (long long)first_use(b));
    lq_buf_add(&body->b, "{", 1);
    if (l->body->child) add_logprobs(body, l->body, l->url, b->o->logprobs);
    lq_buf_add(&body->b, l->body_text + 1, l->n_body - 1);
    return body->b.oom ? lq_fail(err, LQ_ENOMEM, "out of memory") : LQ_OK;
}

static lq_status batch_submit(batch *b, slot *t, uint64_t tag, size_t n, lq_err *err)
{
    jw body = { 0 };
    batch_line l;
    lq_err why = { "" };
    lq_status s = batch_line_read(&l, b->line, n, MAX_BODY, &why);
    if (l.id && !(t->id = strdup(l.id))) s = lq_fail(&why, LQ_ENOMEM, "out of memory");
    if (!s) s = read_request(b, t, &l, &body, &why);
    if (!s) s = lm_submit(b->l, l.url, body.b.p, body.b.n, tag, &why);
    if (s == LQ_ENOMEM) {
        *err = why;
    } else if (s) {
        t->done = true;
        t->error = strdup(why.msg);
        s = t->error ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    batch_line_free(&l);
    jw_free(&body);
    return s;
}

/* "Not now" (out of memory) is no answer: the run ends, and goes on with this request when it is
 * repeated. */
static lq_status not_now(const slot *t, int64_t number, lq_err *err)
{
    if (t->error || t->a.status != 503) return LQ_OK;
    const bool said = t->a.body && t->a.n > 0;
    return lq_fail(err, LQ_ENOMEM, "request %lld: %.*s; repeat the command to go on with it",
                   (long long)number, said && t->a.n < 300 ? (int)t->a.n : 300,
                   said ? t->a.body : "out of memory");
}

static lq_status write_answer(batch *b, const slot *t, int64_t number, lq_err *err)
{
    jw w = { 0 };
    char name[48];
    snprintf(name, sizeof name, ANSWER_ID "%lld", (long long)number);
    batch_line_write(&w, &(batch_answer){ .name = name,
                                          .custom_id = t->id,
                                          .status = t->a.status,
                                          .body = t->a.body,
                                          .n_body = t->a.n,
                                          .error_code = !t->error  ? NULL
                                                        : t->again ? "duplicate_custom_id"
                                                                   : "invalid_line",
                                          .error = t->error });
    lq_status s =
        w.b.oom || (!t->error && !t->a.body) ? lq_fail(err, LQ_ENOMEM, "out of memory") : LQ_OK;
    if (!s && fwrite(w.b.p, 1, w.b.n, b->work) != w.b.n)
        s = lq_fail(err, LQ_EIO, "%s: %s", b->work_path, strerror(errno));
    jw_free(&w);
    b->invalid += t->error != NULL;
    b->answered += !t->error && t->a.status == 200;
    b->refused += !t->error && t->a.status != 200;
    return s;
}

/* ---- all of them ---- */

/* A window of requests is under way; slot i % window has number i of the shard's. */
static lq_status answer_all(batch *b, slot *slots, int64_t window, lq_err *err)
{
    int64_t read = 0, written = b->resumed;
    bool end = false;
    lq_status s = LQ_OK;
    while (!s && written < b->total) {
        if (lq_stopped(b->c->job)) return lq_fail(err, LQ_EINTR, "interrupted");
        while (!s && !end && read < written + window) {
            size_t n;
            s = next_line(b, &n, err);
            end = n == 0;
            if (s || end) break;
            if (read >= b->resumed)
                s = batch_submit(b, &slots[read % window], (uint64_t)read, n, err);
            read++;
        }
        if (!s && end && read < b->total)
            s = lq_fail(err, LQ_EIO, "%s has changed while it was read", b->in);
        if (!s && !slots[written % window].done) lm_step(b->l, 0.2);
        for (lm_answer a; lm_poll(b->l, &a);) {
            slots[(int64_t)a.tag % window].a = a;
            slots[(int64_t)a.tag % window].done = true;
        }
        for (; !s && written < read && slots[written % window].done; written++) {
            s = not_now(&slots[written % window], written + 1, err);
            if (!s) s = write_answer(b, &slots[written % window], written + 1, err);
            slot_free(&slots[written % window]);
        }
        if (!s && fflush(b->work) != 0)
            s = lq_fail(err, LQ_EIO, "%s: %s", b->work_path, strerror(errno));
        lq_report(b->c->job, "answering", (double)written, (double)b->total);
    }
    return s;
}

/* The work file is open, and so locked, until it has its name. */
static lq_status batch_finish(batch *b, lq_err *err)
{
    if (fflush(b->work) != 0 || fsync(fileno(b->work)) != 0)
        return lq_fail(err, LQ_EIO, "%s: %s", b->work_path, strerror(errno));
    if (rename(b->work_path, b->out) != 0)
        return lq_fail(err, LQ_EIO, "%s: %s", b->out, strerror(errno));
    lq_sync_name(b->out);
    unlink(b->state_path);
    return LQ_OK;
}

static lq_status batch_report(const batch *b, double seconds, lq_err *err)
{
    eng_stats st;
    eng_stats_get(lm_engine(b->l), &st);
    double rate = seconds > 0 ? (double)st.generation_tokens / seconds : 0;
    if (!b->c->json) {
        prog_say(LOG_INFO,
                 "%s: %lld answered, %lld refused, %lld lines without a request, %lld done before; "
                 "%llu tokens in %.1f s, %.1f per second",
                 b->out, (long long)b->answered, (long long)b->refused, (long long)b->invalid,
                 (long long)b->resumed, (unsigned long long)st.generation_tokens, seconds, rate);
        return LQ_OK;
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "out", b->out);
    cJSON_AddNumberToObject(o, "requests", (double)b->total);
    cJSON_AddNumberToObject(o, "resumed", (double)b->resumed);
    cJSON_AddNumberToObject(o, "answered", (double)b->answered);
    cJSON_AddNumberToObject(o, "refused", (double)b->refused);
    cJSON_AddNumberToObject(o, "invalid", (double)b->invalid);
    cJSON_AddNumberToObject(o, "prompt_tokens", (double)st.prompt_tokens);
    cJSON_AddNumberToObject(o, "cached_tokens", (double)st.cached_tokens);
    cJSON_AddNumberToObject(o, "output_tokens", (double)st.generation_tokens);
    cJSON_AddNumberToObject(o, "seconds", seconds);
    cJSON_AddNumberToObject(o, "output_tok_s", rate);
    return cmd_print_json(o, err);
}

/* ---- the command ---- */

static lq_status parse_shard(batch *b, lq_err *err)
{
    int i, n;
    const lq_status s = shard_read(&i, &n, b->o->shard, err);
    if (s) return s;
    b->shard = i + 1;
    b->n_shards = n;
    return LQ_OK;
}

static char *with_suffix(const char *path, const char *suffix)
{
    size_t n = strlen(path) + strlen(suffix) + 1;
    char *out = malloc(n);
    if (out) snprintf(out, n, "%s%s", path, suffix);
    return out;
}

/* What is read must not be what is written, and only a file can be taken the place of. */
static lq_status check_names(const batch *b, lq_err *err)
{
    const char *in[] = { b->in, load_named(b->c, b->c->argv[0]) };
    const char *out[] = { b->out, b->work_path, b->state_path };
    struct stat st;
    const size_t len = strlen(b->out);
    if (!len || b->out[len - 1] == '/')
        return lq_fail(err, LQ_EUSAGE, "OUT: expected a file's name, found '%s'", b->out);
    if (stat(b->in, &st) == 0 && !S_ISREG(st.st_mode))
        return lq_fail(err, LQ_EUSAGE, "%s: expected a regular file, which is read twice", b->in);
    for (size_t k = 0; k < LQ_COUNT(out); k++) {
        if (stat(out[k], &st) == 0 && !S_ISREG(st.st_mode))
            return lq_fail(err, LQ_EUSAGE, "%s: expected a regular file or nothing there", out[k]);
        for (size_t i = 0; i < LQ_COUNT(in); i++)
            if (lq_same_file(in[i], out[k]))
                return lq_fail(err, LQ_EUSAGE,
                               "%s is read and would be written: expected another "
                               "name for OUT",
                               out[k]);
    }
    return LQ_OK;
}

/* Work of an earlier run is gone on with or thrown away, a file that somebody else has of that name
 * is not: the state says whose it is, and without one nothing was written yet. */
static lq_status check_work(const batch *b, lq_err *err)
{
    static const char begin[] = ANSWER_BEGIN;
    lq_map m;
    lq_status s = output_check_kind("OUT.resume.json", b->state_path, STATE_BEGIN,
                                    "a batch's unfinished work", err);
    if (s || lq_map_open(&m, b->work_path, NULL)) return s;
    const size_t n = m.size < sizeof begin - 1 ? m.size : sizeof begin - 1;
    if (n && (!lq_exists(b->state_path) || memcmp(m.data, begin, n) != 0))
        s = lq_fail(err, LQ_EUSAGE,
                    "OUT.resume: expected a batch's unfinished work or nothing there, found '%s', "
                    "which %s",
                    b->work_path,
                    lq_exists(b->state_path) ? "holds no answers"
                                             : "has no OUT.resume.json beside it");
    lq_map_close(&m);
    return s;
}

static lq_status open_files(batch *b, lq_err *err)
{
    lq_status s = lq_out_target(&b->target, b->out, err);
    if (s) return s;
    b->out = b->target;
    b->work_path = with_suffix(b->out, ".resume");
    b->state_path = with_suffix(b->out, ".resume.json");
    if (!b->work_path || !b->state_path) return lq_fail(err, LQ_ENOMEM, "out of memory");
    s = check_names(b, err);
    if (!s)
        s = output_check_place("OUT", b->out, false, NULL, load_named(b->c, b->c->argv[0]), err);
    if (!s) s = output_check_kind("OUT", b->out, ANSWER_BEGIN, "a batch's answers", err);
    if (!s) s = check_work(b, err);
    if (s) return s;
    b->lines = fopen(b->in, "re");
    if (!b->lines) return lq_open_failed(err, b->in);
    return LQ_OK;
}

static lq_status batch_check(const cmd_ctx *c, const void *opts, lq_err *err)
{
    batch b = { .o = opts, .c = c };
    eng_opts e;
    const lq_status s = parse_shard(&b, err);
    return s ? s : opt_engine_of(&e, &b.o->engine, &b.o->model, err);
}

static lq_status batch_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    batch b = { .o = opts, .c = c, .in = c->argv[1], .out = c->argv[2] };
    pool *p = NULL;
    slot *slots = NULL;
    eng_opts eo;
    lq_status s = parse_shard(&b, err);
    if (!s) s = opt_engine_of(&eo, &b.o->engine, &b.o->model, err);
    bool over = false;
    if (!s) s = load_ranks(&over, c, &b.o->model, c->argv[0], err);
    if (s || over) return s;
    const load_service_opts how = { .path = c->argv[0],
                                    .names = &b.o->names,
                                    .engine = &b.o->engine,
                                    .model = &b.o->model,
                                    .queue = 1 << 20 }; /* the window bounds what waits */
    int64_t window = 2 * eo.max_seqs > MIN_WINDOW ? 2 * eo.max_seqs : MIN_WINDOW;
    s = open_files(&b, err);
    if (!s) s = load_service(&b.l, &p, c, &how, err);
    if (!s) s = open_work(&b, err);
    if (!s && !(slots = calloc((size_t)window, sizeof *slots)))
        s = lq_fail(err, LQ_ENOMEM, "out of memory");
    double start = lq_now();
    if (!s) s = answer_all(&b, slots, window, err);
    prog_end();
    if (!s) s = batch_finish(&b, err);
    if (!s) s = batch_report(&b, lq_now() - start, err);
    lm_close(b.l);
    pool_close(p);
    for (int64_t i = 0; slots && i < window; i++)
        slot_free(&slots[i]);
    free(slots);
    if (b.work) fclose(b.work);
    if (b.lines) fclose(b.lines);
    free(b.line);
    free(b.again);
    free(b.target);
    free(b.work_path);
    free(b.state_path);
    return s;
}

const cmd_row cmd_batch = {
    .name = "batch",
    .summary = "answer a file of requests without a server",
    .details =
        "IN has one request a line, as OpenAI's batches: {\"custom_id\", \"method\": \"POST\", "
        "\"url\": \"/v1/chat/completions\", \"body\": {...}}; url may be any POST route of serve. "
        "OUT has one answer a line in the same order: {\"id\", \"custom_id\", \"response\": "
        "{\"status_code\", \"request_id\", \"body\"}, \"error\"}. A line that is not a request "
        "gets "
        "an "
        "error, and the others go on. An interrupted run goes on when it is repeated. With "
        "--logprobs the answers are a teacher's outputs to distil from.",
    .args = { { "MODEL", 1, 1, OPT_MODEL_HELP, FILES_MODEL },
              { "IN", 1, 1, "the requests, JSON lines" },
              { "OUT", 1, 1, "the answers, JSON lines" } },
    .groups = { OPT_GROUP("Batch", rows, 0), OPT_GROUP("Engine", opt_engine_rows, F(engine)),
                OPT_GROUP("Running the model", opt_model_rows, F(model)),
                OPT_GROUP("Quantizing while loading", inflight_rows, F(inflight)) },
    .examples = "llmq batch model.llmq requests.jsonl answers.jsonl\0"
                "llmq batch model.llmq prompts.jsonl teacher.jsonl --logprobs 20\0"
                "llmq batch model.llmq requests.jsonl part2.jsonl --shard 2/8\0",
    .opts_bytes = sizeof(batch_opts),
    .check = batch_check,
    .run = batch_run,
    .processes = CMD_SHARED,
};
