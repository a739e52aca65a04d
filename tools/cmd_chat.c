/* tools/cmd_chat.c - `llmq chat`: a conversation in the terminal, with a server or with a model
 * that is loaded into this process (tools/server/local.h) and spoken to in the same way.
 *
 * stdout has the answers alone, so that they can be piped; the prompt, thoughts and what the program
 * itself says go to stderr. SIGINT breaks off the answer that comes in; while none does, it ends the
 * program, as the end of input does. */
#include "base/clock.h"
#include "base/json.h"
#include "base/out_file.h"
#include "base/path.h"
#include "base/utf8.h"
#include "tools/cli/engine_opts.h"
#include "tools/cli/line_edit.h"
#include "tools/cli/outputs.h"
#include "tools/cli/term_text.h"
#include "tools/inflight/inflight.h"
#include "tools/server/client.h"
#include "tools/server/local.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <termios.h>
#include <unistd.h>

typedef struct {
    const char *system, *key, *name;
    double temperature, top_p;
    int64_t max_tokens, seed;
    bool insecure, thoughts, no_thoughts;
    opt_engine engine;
    opt_model model;
    inflight_opts inflight;
} chat_opts;

#define F(field) offsetof(chat_opts, field)
static const opt_row chat_rows[] = {
    { "system", 0, OPT_STR, F(system), .arg = "TEXT", .help = "the system message" },
    { "thoughts", 0, OPT_FLAG, F(thoughts),
      .help = "show what the model thinks, on stderr; on a terminal it is shown anyway" },
    { "no-thoughts", 0, OPT_FLAG, F(no_thoughts), .help = "do not, on a terminal either" },
};
static const opt_row sampling_rows[] = {
    { "max-tokens", 'n', OPT_INT, F(max_tokens), .lo = 1, .hi = 1e9,
      .help = "most tokens of an answer; default: the server's" },
    { "temperature", 't', OPT_FLOAT, F(temperature), .lo = 0, .hi = 2,
      .help = "0 is greedy; default: the server's" },
    { "top-p", 0, OPT_FLOAT, F(top_p), .lo = 0, .hi = 1,
      .help = "sample from the likeliest tokens that add up to this probability; not 0; default: "
              "the server's" },
    { "seed", 's', OPT_INT, F(seed),
      .help = "same seed, same answers; default: another each time" },
};
static const opt_row server_rows[] = {
    { "key", 0, OPT_STR, F(key), .arg = "KEY",
      .help = "the server's key; default: LLMQ_API_KEY or OPENAI_API_KEY of the environment" },
    { "served-model-name", 0, OPT_STR, F(name), .arg = "NAME",
      .help = "one of the server's models; default: its first" },
    { "insecure", 0, OPT_FLAG, F(insecure), .help = "accept any TLS certificate" },
};

typedef struct {
    const cmd_ctx *c;
    const chat_opts *o;
    client *client;
    char *model;
    cJSON *messages; /* of role and content */
    bool terminal;   /* stdin and stderr are one */
    bool quit;
    lq_buf answer;
    term_text out, thought; /* how it is shown: on stdout, on stderr */
    bool thinking, ended;   /* ended: its done() was called */
    lq_status s;            /* of the answer */
    lq_err err;
    int64_t prompt_tokens, answer_tokens;
    double t_start, t_first, t_last; /* of the question; of the first and the last of its tokens */
    int64_t n_asked, n_unanswered;   /* the latter: not at all, or not to the end */
    lq_buf in;                       /* what was read of stdin; from in_at on nobody has looked */
    size_t in_at;
    bool in_ended;
    int64_t n_lines;   /* of stdin, so far */
    line_edit *editor; /* NULL: no terminal, or none of its kind */
} chat;

static volatile sig_atomic_t interrupted;
static void on_interrupt(int sig) { interrupted = sig; }

/* What is wrong with one message. Who pipes in many wants to know which it was. */
__attribute__((format(printf, 2, 3))) static void say_wrong(const chat *h, const char *fmt, ...)
{
    lq_err e;
    char where[40] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e.msg, sizeof e.msg, fmt, ap);
    va_end(ap);
    if (!h->terminal) snprintf(where, sizeof where, "line %lld: ", (long long)h->n_lines);
    prog_say(LOG_ERROR, "llmq: chat: %s%s", where, e.msg);
}

/* ---- the conversation ---- */

static lq_status add(chat *h, const char *role, const char *text, lq_err *err)
{
    cJSON *m = cJSON_CreateObject();
    if (cJSON_AddStringToObject(m, "role", role) && cJSON_AddStringToObject(m, "content", text) &&
        cJSON_AddItemToArray(h->messages, m))
        return LQ_OK;
    cJSON_Delete(m);
    return lq_fail(err, LQ_ENOMEM, "out of memory");
}

static const char *role_at(const chat *h, int i)
{
    const char *role = NULL;
    js_str(cJSON_GetArrayItem(h->messages, i), "role", false, &role, NULL);
    return role ? role : "";
}

static void drop_last(chat *h)
{
    cJSON_DeleteItemFromArray(h->messages, cJSON_GetArraySize(h->messages) - 1);
}

static lq_status chat_begin(chat *h, const char *system, lq_err *err)
{
    cJSON_Delete(h->messages);
    h->messages = cJSON_CreateArray();
    if (!h->messages) return lq_fail(err, LQ_ENOMEM, "out of memory");
    return system && system[0] ? add(h, "system", system, err) : LQ_OK;
}

/* The system message of now; NULL: none. */
static const char *system_of(const chat *h)
{
    const char *text = NULL;
    if (strcmp(role_at(h, 0), "system") == 0)
        js_str(h->messages->child, "content", false, &text, NULL);
    return text;
}

/* ---- an answer ---- */

static char *body_of(const chat *h)
{
    const cmd_ctx *c = h->c;
    cJSON *b = cJSON_CreateObject(), *so;
    cJSON_AddStringToObject(b, "model", h->model);
    cJSON_AddItemReferenceToObject(b, "messages", h->messages);
    cJSON_AddBoolToObject(b, "stream", true);
    so = cJSON_AddObjectToObject(b, "stream_options");
    cJSON_AddBoolToObject(so, "include_usage", true);
    const struct {
        const char *option, *name;
        double value;
    } numbers[] = { { "max-tokens", "max_tokens", (double)h->o->max_tokens },
                    { "temperature", "temperature", h->o->temperature },
                    { "top-p", "top_p", h->o->top_p },
                    { "seed", "seed", (double)h->o->seed } };
    for (size_t i = 0; i < LQ_COUNT(numbers); i++)
        if (opt_given(c, numbers[i].option))
            cJSON_AddNumberToObject(b, numbers[i].name, numbers[i].value);
    char *text = js_print(b, false);
    cJSON_Delete(b);
    return text;
}

static void end_thought(chat *h)
{
    if (!h->thinking) return;
    term_text_end(&h->thought);
    fputc('\n', stderr);
    h->thinking = false;
}

static void take_text(chat *h, const cJSON *delta)
{
    const char *text = NULL, *thought = NULL;
    js_str(delta, "content", false, &text, NULL);
    js_str(delta, "reasoning_content", false, &thought, NULL);
    if (thought && thought[0] && !h->o->no_thoughts && (h->o->thoughts || h->terminal)) {
        term_text_thought(&h->thought, thought);
        fflush(stderr);
        h->thinking = true;
    }
    if ((text && text[0]) || (thought && thought[0])) {
        h->t_last = lq_now();
        if (h->t_first <= 0) h->t_first = h->t_last;
    }
    if (!text || !text[0]) return;
    end_thought(h);
    lq_buf_puts(&h->answer, text);
    term_text_put(&h->out, text);
    fflush(stdout);
}

static bool on_event(void *user, const char *data, size_t n)
{
    chat *h = user;
    cJSON *doc = NULL;
    h->s = js_parse(&doc, data, n, SIZE_MAX, 0, &h->err);
    const cJSON *choices = js_get(doc, "choices"), *usage = js_get(doc, "usage");
    if (!h->s && js_get(doc, "error")) {
        client_say(&(client_answer){ .status = 200, .body = data, .n = n }, &h->err);
        h->s = LQ_EIO;
    }
    if (!h->s && choices && choices->child) take_text(h, js_get(choices->child, "delta"));
    if (!h->s && usage) {
        js_i64(usage, "prompt_tokens", false, 0, JS_MAX_INT, &h->prompt_tokens, NULL);
        js_i64(usage, "completion_tokens", false, 0, JS_MAX_INT, &h->answer_tokens, NULL);
    }
    cJSON_Delete(doc);
    return !h->s;
}

static void on_done(void *user, const client_answer *a)
{
    chat *h = user;
    h->ended = true;
    if (h->s || a->cancelled || (a->status == 200 && a->whole)) return;
    client_say(a, &h->err);
    h->s = LQ_EIO;
}

static void say_usage(const chat *h)
{
    const double rest = h->t_last - h->t_first;
    char first[48] = "", rate[48] = "";
    if (!h->terminal || !h->answer_tokens) return;
    if (h->t_first > 0)
        snprintf(first, sizeof first, ", first after %.2f s", h->t_first - h->t_start);
    if (h->answer_tokens > 1 && rest > 0) /* one token has no rate, nor have those of one event */
        snprintf(rate, sizeof rate, ", %.1f per second", (double)(h->answer_tokens - 1) / rest);
    prog_say(LOG_INFO, "[%lld + %lld tokens%s%s]", (long long)h->prompt_tokens,
             (long long)h->answer_tokens, first, rate);
}

/* What is typed while an answer comes in is the next message's; the editor shows it then. */
static void set_echo(const chat *h, bool on)
{
    struct termios t;
    if (!h->editor || tcgetattr(STDIN_FILENO, &t)) return;
    t.c_lflag = on ? t.c_lflag | ECHO : t.c_lflag & ~(tcflag_t)ECHO;
    tcsetattr(STDIN_FILENO, TCSANOW, &t);
}

/* Asks with the messages as they are and adds the answer, also a broken one that has begun. LQ_OK
 * but for want of memory: what went wrong is said, h->s keeps it. */
static lq_status answer(chat *h, lq_err *err)
{
    lq_buf_clear(&h->answer);
    h->s = LQ_OK;
    h->thinking = h->ended = false;
    h->prompt_tokens = h->answer_tokens = 0;
    h->t_start = lq_now();
    h->t_first = h->t_last = 0;
    h->n_asked++;
    char *body = body_of(h);
    if (!body) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status s = client_send(h->client,
                              &(client_request){ .path = "/v1/chat/completions",
                                                 .json = body,
                                                 .event = on_event,
                                                 .done = on_done,
                                                 .user = h },
                              err);
    free(body);
    set_echo(h, false);
    while (!s && !h->ended) {
        if (interrupted || lq_stopped(h->c->job)) client_cancel(h->client);
        client_step(h->client, 0.2);
    }
    set_echo(h, true);
    if (s) return s;
    const size_t n = h->answer.n;
    end_thought(h);
    term_text_end(&h->out);
    if (n && h->answer.p[n - 1] != '\n') putchar('\n');
    fflush(stdout);
    lq_buf_add(&h->answer, "", 1);
    if (h->answer.oom) return lq_fail(err, LQ_ENOMEM, "out of memory");
    if (h->s)
        say_wrong(h, "%s", h->err.msg);
    else if (interrupted || lq_stopped(h->c->job))
        prog_say(LOG_INFO, "[stopped]");
    else
        say_usage(h);
    h->n_unanswered += h->s != LQ_OK;
    if (h->terminal) interrupted = 0; /* in a pipe it ends the program */
    if (n) return add(h, "assistant", h->answer.p, err);
    if (h->s) drop_last(h); /* a question without an answer is no part of what is asked next */
    return LQ_OK;
}

/* ---- commands ---- */

typedef struct {
    const char *name, *arg, *help;
    lq_status (*run)(chat *h, const char *arg, lq_err *err);
} command;

static lq_status do_help(chat *h, const char *arg, lq_err *err);

static lq_status do_clear(chat *h, const char *arg, lq_err *err)
{
    (void)arg;
    char *system = system_of(h) ? strdup(system_of(h)) : NULL;
    lq_status s = chat_begin(h, system, err);
    free(system);
    return s;
}

static lq_status do_system(chat *h, const char *arg, lq_err *err)
{
    return chat_begin(h, arg, err);
}

static lq_status do_regenerate(chat *h, const char *arg, lq_err *err)
{
    (void)arg;
    if (strcmp(role_at(h, cJSON_GetArraySize(h->messages) - 1), "assistant") == 0) drop_last(h);
    if (strcmp(role_at(h, cJSON_GetArraySize(h->messages) - 1), "user") == 0) return answer(h, err);
    prog_say(LOG_WARN, "there is nothing to answer again");
    return LQ_OK;
}

static bool is_url(const char *s)
{
    return strncasecmp(s, "http://", 7) == 0 || strncasecmp(s, "https://", 8) == 0;
}

/* A name that is mistyped is no wish for new folders. */
static lq_status check_folder(const char *path, lq_err *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    const bool there = folder && lq_is_dir(folder);
    lq_status s = !folder  ? lq_fail(err, LQ_ENOMEM, "out of memory")
                  : !there ? lq_fail(err, LQ_EIO, "%.300s: there is no folder %.300s", path, folder)
                           : LQ_OK;
    free(folder);
    return s;
}

/* The conversation as the `messages` of a request. */
static lq_status do_save(chat *h, const char *arg, lq_err *err)
{
    if (!arg[0]) {
        prog_say(LOG_WARN, "/save: expected a file");
        return LQ_OK;
    }
    char *text = js_print(h->messages, true);
    if (!text) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_out *o = NULL;
    lq_err why;
    const char *from = load_named(h->c, h->c->argv[0]);
    lq_status s = check_folder(arg, &why);
    if (!s && !is_url(from)) s = output_check_place("FILE", arg, false, NULL, from, &why);
    if (!s) s = lq_out_open(&o, arg, &why);
    if (!s) s = lq_out_write(o, text, strlen(text), &why);
    if (!s) s = lq_out_write(o, "\n", 1, &why);
    if (!s)
        s = lq_out_commit(o, &why);
    else if (o)
        lq_out_abort(o);
    free(text);
    if (s)
        prog_say(LOG_ERROR, "llmq: chat: /save: %s", why.msg);
    else
        prog_say(LOG_INFO, "[%d messages in %s]", cJSON_GetArraySize(h->messages), arg);
    return LQ_OK;
}

/* The messages of a file that /save wrote. */
static lq_status messages_of(cJSON **out, const char *path, lq_err *err)
{
    cJSON *list = NULL;
    lq_status s = js_parse_file(&list, path, SIZE_MAX, 0, err);
    if (!s && !cJSON_IsArray(list))
        s = lq_fail(err, LQ_EFORMAT, "%.300s: expected a JSON list of messages, as /save writes it",
                    path);
    int n = 0;
    for (const cJSON *m = list ? list->child : NULL; m && !s; m = m->next, n++) {
        const char *role, *content;
        s = js_str(m, "role", true, &role, err);
        if (!s) s = js_str(m, "content", true, &content, err);
        if (s) lq_wrap(err, s, "%.300s: message %d", path, n);
    }
    if (s)
        cJSON_Delete(list);
    else
        *out = list;
    return s;
}

static lq_status do_load(chat *h, const char *arg, lq_err *err)
{
    (void)err;
    cJSON *list = NULL;
    lq_err why;
    if (!arg[0]) {
        prog_say(LOG_WARN, "/load: expected a file");
        return LQ_OK;
    }
    if (messages_of(&list, arg, &why)) {
        prog_say(LOG_ERROR, "llmq: chat: /load: %s", why.msg);
        return LQ_OK;
    }
    cJSON_Delete(h->messages);
    h->messages = list;
    prog_say(LOG_INFO, "[%d messages of %s]", cJSON_GetArraySize(list), arg);
    return LQ_OK;
}

static lq_status do_quit(chat *h, const char *arg, lq_err *err)
{
    (void)arg;
    (void)err;
    h->quit = true;
    return LQ_OK;
}

static const command commands[] = {
    { "/help", "", "this list", do_help },
    { "/clear", "", "start over; the system message stays", do_clear },
    { "/system", "TEXT", "start over with this system message; without TEXT: with none",
      do_system },
    { "/regenerate", "", "answer the last message again", do_regenerate },
    { "/save", "FILE", "write the conversation as a JSON list of messages", do_save },
    { "/load", "FILE", "go on with a conversation that /save wrote", do_load },
    { "/quit", "", "end; so does the end of input (Ctrl-D)", do_quit },
};

static lq_status do_help(chat *h, const char *arg, lq_err *err)
{
    (void)arg;
    (void)err;
    for (size_t i = 0; i < LQ_COUNT(commands); i++) {
        char head[32];
        snprintf(head, sizeof head, "%s %s", commands[i].name, commands[i].arg);
        fprintf(stderr, "%-14s %s\n", head, commands[i].help);
    }
    fprintf(stderr, "A line that ends in \\ goes on in the next one; one that begins with // is a\n"
                    "message that begins with /. Ctrl-C stops an answer.\n");
    if (h->editor)
        fprintf(stderr, "Alt-Enter begins a line, arrows move and go back in the history, Ctrl-R\n"
                        "searches it; pasted lines are one message.\n");
    else if (h->terminal)
        fprintf(stderr, "The terminal edits the line: there is no libedit here.\n");
    return LQ_OK;
}

static lq_status run_command(chat *h, const char *line, lq_err *err)
{
    const size_t n = strcspn(line, " ");
    const char *arg = line + n + strspn(line + n, " ");
    for (size_t i = 0; i < LQ_COUNT(commands); i++)
        if (strlen(commands[i].name) == n && memcmp(commands[i].name, line, n) == 0)
            return commands[i].run(h, arg, err);
    prog_say(LOG_WARN, "no command %.*s; /help lists them", (int)(n < 40 ? n : 40), line);
    return LQ_OK;
}

/* ---- input ---- */

enum { LINE_BYTES_MAX = 32 << 20 }; /* what a server takes as a body, unless it is told */

static bool is_over(const chat *h) { return interrupted || lq_stopped(h->c->job); }

enum { LOOK_MS = 200 }; /* a signal between a look and a read would be lost if it took longer */

/* One look at stdin, of `ms` at most. True: there is more of it. */
static bool look(chat *h, int ms)
{
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
    char piece[1 << 16];
    if (poll(&in, 1, ms) <= 0) return false;
    const ssize_t n = read(STDIN_FILENO, piece, sizeof piece);
    if (n < 0 && errno == EINTR) return false;
    h->in_ended = n <= 0;
    if (h->in_ended) return false;
    if (h->in_at) memmove(h->in.p, h->in.p + h->in_at, h->in.n - h->in_at);
    h->in.n -= h->in_at;
    h->in_at = 0;
    lq_buf_add(&h->in, piece, (size_t)n);
    return !h->in.oom;
}

/* More of stdin. False: the end of input, or a signal. */
static bool read_more(chat *h)
{
    while (!is_over(h) && !h->in_ended && !h->in.oom)
        if (look(h, LOOK_MS)) return true;
    return false;
}

/* The editor's source of bytes (line_edit_byte). */
static int next_byte(void *user, uint8_t *b)
{
    chat *h = user;
    const bool none = h->in_at == h->in.n;
    if (is_over(h) || h->in.oom || (none && h->in_ended)) return -1;
    if (none && !look(h, LOOK_MS)) return 0;
    *b = h->in.u[h->in_at++];
    return 1;
}

/* The next line, without its end; valid until the next one. False: there is none, or a signal. */
static bool next_line(chat *h, const char **line, size_t *n, lq_status *s, lq_err *err)
{
    const char *end = NULL;
    size_t looked = 0;
    do {
        const size_t have = h->in.n - h->in_at;
        if (have > looked) end = memchr(h->in.p + h->in_at + looked, '\n', have - looked);
        looked = have;
        if (looked > LINE_BYTES_MAX)
            *s = lq_fail(err, LQ_EVALUE, "line %lld: expected at most %d bytes",
                         (long long)h->n_lines + 1, LINE_BYTES_MAX);
        if (*s) return false;
    } while (!end && read_more(h));
    if (h->in.oom) *s = lq_fail(err, LQ_ENOMEM, "out of memory");
    if (*s || is_over(h) || (!end && !looked)) return false;
    *line = h->in.p + h->in_at;
    *n = end ? (size_t)(end - *line) : looked;
    h->in_at += *n + (end != NULL);
    h->n_lines++;
    while (*n && (*line)[*n - 1] == '\r')
        --*n;
    return true;
}

/* What was typed while no editor had the terminal. The terminal's own mode knows a Ctrl-D among it for the end
 * of input; after a change to the editor's mode it would be a zero byte. */
static void take_typed(chat *h)
{
    while (!h->in_ended && look(h, 0)) {
    }
}

/* The same from the editor, whose messages may have several lines anyway. */
static bool edit_message(chat *h, lq_buf *text)
{
    take_typed(h);
    for (const char *prompt = "> "; line_edit_read(h->editor, prompt, text); prompt = "... ") {
        if (text->n && text->p[text->n - 1] == '\\') {
            text->p[text->n - 1] = '\n';
            continue;
        }
        lq_buf_add(text, "", 1);
        if (text->oom) return true; /* take_message says so */
        text->n--;
        line_edit_remember(h->editor, text->p);
        return true;
    }
    return text->n > 0 && !is_over(h);
}

/* One message into *text: a line and those that it goes on in. False: no more. */
static bool read_message(chat *h, lq_buf *text, lq_status *s, lq_err *err)
{
    const char *line;
    size_t n;
    lq_buf_clear(text);
    if (h->editor) return edit_message(h, text);
    for (const char *prompt = "> ";; prompt = "... ") {
        if (h->terminal) fputs(prompt, stderr);
        if (!next_line(h, &line, &n, s, err)) return text->n > 0 && !*s && !is_over(h);
        const bool more = n && line[n - 1] == '\\';
        lq_buf_add(text, line, more ? n - 1 : n);
        if (!more) return true;
        lq_buf_puts(text, "\n");
    }
}

/* Bytes that no message can have, or that a terminal's own line editing leaves behind. */
static bool is_sendable(const chat *h, const lq_buf *text)
{
    for (size_t i = 0; i < text->n;) {
        const size_t k = lq_utf8_len(text->u + i, text->n - i);
        const uint8_t b = (uint8_t)text->p[i];
        const char *what = !k        ? "broken characters (no UTF-8)"
                           : b == 0  ? "a NUL"
                           : b == 9  ? NULL
                           : b == 10 ? NULL
                           : h->terminal && (b < 0x20 || b == 0x7f)
                               ? "control characters (arrow keys do nothing here)"
                               : NULL;
        if (what) {
            say_wrong(h, "not sent: %s in the line", what);
            return false;
        }
        i += k;
    }
    return true;
}

static lq_status take_message(chat *h, lq_buf *text, lq_err *err)
{
    if (!text->oom && !is_sendable(h, text)) {
        h->n_asked++;
        h->n_unanswered++;
        return LQ_OK;
    }
    lq_buf_add(text, "", 1);
    if (text->oom) return lq_fail(err, LQ_ENOMEM, "out of memory");
    if (text->p[0] == '/' && text->p[1] != '/') return run_command(h, text->p, err);
    if (!text->p[strspn(text->p, " \t\n")]) return LQ_OK;
    lq_status s = add(h, "user", text->p + (text->p[0] == '/'), err);
    return s ? s : answer(h, err);
}

static lq_status talk(chat *h, lq_err *err)
{
    lq_buf text = { 0 };
    lq_status s = LQ_OK;
    while (!s && !h->quit && !is_over(h) && read_message(h, &text, &s, err))
        s = take_message(h, &text, err);
    lq_buf_free(&text);
    if (s) return s;
    if (lq_stopped(h->c->job) || (interrupted && !h->terminal))
        return lq_fail(err, LQ_EINTR, "interrupted");
    if (h->terminal || !h->n_unanswered) return LQ_OK;
    return lq_fail(err, LQ_EIO, "%lld of %lld messages without a whole answer",
                   (long long)h->n_unanswered, (long long)h->n_asked); /* for the exit code */
}

/* ---- the command ---- */

/* So that the terminal erases whole characters, and not the last byte of one. */
static bool edit_utf8(struct termios *before)
{
    if (tcgetattr(STDIN_FILENO, before)) return false;
    struct termios t = *before;
    t.c_iflag |= IUTF8;
    return tcsetattr(STDIN_FILENO, TCSANOW, &t) == 0;
}

static lq_status connect_to(chat *h, local **l, const char *target, lq_err *err)
{
    const chat_opts *o = h->o;
    lq_status s = LQ_OK;
    const char *key = o->key ? o->key : getenv("LLMQ_API_KEY");
    client_opts co = { .url = target,
                       .key = key ? key : getenv("OPENAI_API_KEY"),
                       .insecure = o->insecure };
    if (!is_url(target)) {
        s = local_open(l, target, &o->engine, &o->model, h->c, err);
        if (s) return s;
        co = (client_opts){ .url = "http://localhost", .unix_path = local_socket(*l) };
    }
    s = client_open(&h->client, &co, err);
    const char *lora = !is_url(target) && o->engine.loras.n ? o->engine.loras.v[0] : NULL;
    const char *name = o->name ? o->name : lora;
    if (!s && name) h->model = strndup(name, o->name ? strlen(name) : strcspn(name, "="));
    if (!s && name && !h->model) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!s && !name) s = client_model(h->client, &h->model, err);
    return s && is_url(target) ? lq_wrap(err, s, "%.200s", target) : s;
}

static lq_status chat_check(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const chat_opts *o = opts;
    if (c->json) return lq_fail(err, LQ_EUSAGE, "--json: a conversation is no document");
    if (o->engine.loras.n && is_url(c->argv[0]))
        return lq_fail(err, LQ_EUSAGE,
                       "--lora: expected a model, found a server, which has adapters of its own: "
                       "--served-model-name NAME");
    if (opt_given(c, "top-p") && !(o->top_p > 0))
        return lq_fail(err, LQ_EUSAGE, "--top-p: expected a number above 0, found %g", o->top_p);
    if (o->system && !lq_utf8_valid(o->system, strlen(o->system), NULL))
        return lq_fail(err, LQ_EUSAGE, "--system: found bytes that are no UTF-8");
    return LQ_OK;
}

static lq_status chat_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    chat h = { .c = c, .o = opts, .terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO) };
    local *l = NULL;
    lq_status s = connect_to(&h, &l, c->argv[0], err);
    prog_end();
    struct termios before;
    bool edits = h.terminal && edit_utf8(&before);
    /* no SA_RESTART: waiting for a line ends; no SA_RESETHAND: every answer can be stopped */
    struct sigaction a = { .sa_handler = on_interrupt };
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    term_text_begin(&h.out, stdout);
    term_text_begin(&h.thought, stderr);
    if (!s && h.terminal) s = line_edit_open(&h.editor, next_byte, &h, err);
    if (!s) s = chat_begin(&h, h.o->system, err);
    if (!s && h.terminal)
        prog_say(LOG_INFO, "%s; /help lists the commands, Ctrl-C stops an answer", h.model);
    if (!s) s = talk(&h, err);
    if (h.terminal) fputc('\n', stderr);
    line_edit_close(h.editor);
    if (edits) tcsetattr(STDIN_FILENO, TCSANOW, &before);
    client_close(h.client);
    local_close(l);
    cJSON_Delete(h.messages);
    lq_buf_free(&h.answer);
    lq_buf_free(&h.in);
    free(h.model);
    return s;
}

const cmd_row cmd_chat = {
    .name = "chat",
    .summary = "talk to a model or to a server, in the terminal",
    .details =
        "Every line is a message, /help lists commands. Answers go to stdout as they come, "
        "everything else to stderr. Ctrl-C stops an answer; between answers it ends the program. "
        "On a terminal lines are edited as in a shell, pasted lines are one message, and answers "
        "are coloured by their Markdown unless NO_COLOR is set. "
        "Without a terminal the lines of stdin are answered one after the other; what is wrong "
        "with "
        "one is said with its number, and the exit code is 1 when one was not answered.",
    .args = { { "TARGET", 1, 1, "a model, or http://HOST:PORT of a server", FILES_MODEL } },
    .groups = { OPT_GROUP("Conversation", chat_rows, 0), OPT_GROUP("Answers", sampling_rows, 0),
                OPT_GROUP("Server", server_rows, 0),
                OPT_GROUP("Engine, of a model", opt_engine_rows, F(engine)),
                OPT_GROUP("Running the model", opt_model_rows, F(model)),
                OPT_GROUP("Quantizing while loading", inflight_rows, F(inflight)) },
    .examples = "llmq chat model.llmq\0"
                "llmq chat http://127.0.0.1:8000 --system 'Be brief.'\0"
                "echo 'Who wrote Emma?' | llmq chat model.llmq -t 0\0",
    .opts_bytes = sizeof(chat_opts),
    .check = chat_check,
    .run = chat_run,
};
