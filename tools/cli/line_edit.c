/* tools/cli/line_edit.c - see line_edit.h. */
#include "tools/cli/line_edit.h"

#ifdef LLMQ_LIBEDIT

#include "base/utf8.h"

#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_MESSAGES = 500 };

struct line_edit {
    EditLine *el;
    HistoryW *history;
    HistEventW event;
    line_edit_byte byte;
    void *user;
    wchar_t prompt[16];
    struct sigaction before[2]; /* of the signals in `signals` */
};

/* ---- signals ---- */

static const int signals[] = { SIGWINCH, SIGCONT };
static volatile sig_atomic_t came[LQ_COUNT(signals)];

static void on_signal(int sig) { came[sig == SIGCONT] = 1; }

/* The terminal tells pasted text from typed text while this is on. */
static void mark_pastes(bool on)
{
    fputs(on ? "\033[?2004h" : "\033[?2004l", stderr);
    fflush(stderr);
}

/* Another size; or back from Ctrl-Z, when the shell has left the terminal in its own mode. */
static void follow_signals(EditLine *el)
{
    if (came[0]) el_resize(el);
    if (came[1]) {
        el_set(el, EL_PREP_TERM, 0);
        el_set(el, EL_PREP_TERM, 1);
        mark_pastes(true);
        el_set(el, EL_REFRESH);
    }
    came[0] = came[1] = 0;
}

/* ---- characters ---- */

/* libedit's reader. 1: *c is the next character, -1: there are no more. */
static int get_char(EditLine *el, wchar_t *c)
{
    line_edit *e = NULL;
    uint8_t b[4];
    size_t n = 0, len = 0;
    el_get(el, EL_CLIENTDATA, &e);
    for (;;) {
        follow_signals(el);
        const int got = e->byte(e->user, &b[n]);
        if (got < 0) return -1;
        if (!got) continue;
        const lq_utf8 is = lq_utf8_step(b, ++n, &len);
        if (is == LQ_UTF8_PARTIAL) continue;
        *c = is == LQ_UTF8_CHAR ? (wchar_t)lq_utf8_get(b, &len) : 0xfffd;
        return 1;
    }
}

/* malloc'd; NULL: out of memory. text is valid. */
static wchar_t *wide_of(const char *text)
{
    wchar_t *w = malloc((strlen(text) + 1) * sizeof *w);
    size_t n = 0, len;
    for (const uint8_t *s = (const uint8_t *)text; w && *s; s += len)
        w[n++] = (wchar_t)lq_utf8_get(s, &len);
    if (w) w[n] = 0;
    return w;
}

/* ---- functions of keys ---- */

static unsigned char new_line(EditLine *el, wint_t c)
{
    (void)c;
    return el_winsertstr(el, L"\n") ? CC_ERROR : CC_REFRESH;
}

/* What the terminal sends between its two marks, as it is but for control characters. */
static unsigned char paste(EditLine *el, wint_t first)
{
    static const wchar_t end[] = L"\033[201~";
    const size_t n_end = LQ_COUNT(end) - 1;
    lq_buf in = { 0 };
    wchar_t c;
    bool ended = false;
    (void)first;
    while (!ended && !in.oom && el_wgetc(el, &c) == 1) {
        lq_buf_add(&in, &c, sizeof c);
        const size_t n = in.n / sizeof c;
        ended = n >= n_end && memcmp(in.p + (n - n_end) * sizeof c, end, n_end * sizeof c) == 0;
    }
    size_t n = in.n / sizeof c - (ended ? n_end : 0), kept = 0;
    wchar_t *text = calloc(n + 1, sizeof *text);
    for (size_t i = 0; text && i < n; i++) {
        memcpy(&c, in.p + i * sizeof c, sizeof c);
        if (c == '\r') c = '\n';
        if ((c >= 0x20 && c != 0x7f) || c == '\n' || c == '\t') text[kept++] = c;
    }
    const bool put = text && (!kept || el_winsertstr(el, text) == 0);
    free(text);
    lq_buf_free(&in);
    return !ended ? CC_EOF : put ? CC_REFRESH : CC_ERROR;
}

/* To the same column of the line above or below; at the edge the key `beyond`, of the history. */
static unsigned char move(EditLine *el, bool up, const wchar_t *beyond)
{
    const LineInfoW *l = el_wline(el);
    const wchar_t *start = l->cursor, *to = l->cursor;
    while (start > l->buffer && start[-1] != '\n')
        start--;
    const ptrdiff_t column = l->cursor - start;
    if (up && start > l->buffer) {
        to = start - 1;
        while (to > l->buffer && to[-1] != '\n')
            to--;
    } else if (!up) {
        while (to < l->lastchar && *to != '\n')
            to++;
        if (to < l->lastchar) to++;
    }
    if (up ? start == l->buffer : to == l->lastchar) {
        el_wpush(el, beyond);
        return CC_NORM;
    }
    const wchar_t *last = up ? start - 1 : l->lastchar;
    ptrdiff_t n = 0;
    while (n < column && to + n < last && to[n] != '\n')
        n++;
    el_cursor(el, (int)(to + n - l->cursor));
    return CC_REFRESH;
}

static unsigned char move_up(EditLine *el, wint_t c)
{
    (void)c;
    return move(el, true, L"\020");
}

static unsigned char move_down(EditLine *el, wint_t c)
{
    (void)c;
    return move(el, false, L"\016");
}

static const struct {
    const char *name, *help;
    unsigned char (*run)(EditLine *el, wint_t c);
} functions[] = {
    { "chat-new-line", "begin a line", new_line },
    { "chat-paste", "take pasted text", paste },
    { "chat-up", "line above, or history", move_up },
    { "chat-down", "line below, or history", move_down },
};

/* As the terminals of today send them, and as readline has them. */
static const struct {
    const char *keys, *function;
} bindings[] = {
    { "\\e[200~", "chat-paste" },   { "\\e\\n", "chat-new-line" },
    { "\\e\\r", "chat-new-line" },  { "\\e[A", "chat-up" },
    { "\\eOA", "chat-up" },         { "\\e[B", "chat-down" },
    { "\\eOB", "chat-down" },       { "\\e[H", "ed-move-to-beg" },
    { "\\eOH", "ed-move-to-beg" },  { "\\e[1~", "ed-move-to-beg" },
    { "\\e[F", "ed-move-to-end" },  { "\\eOF", "ed-move-to-end" },
    { "\\e[4~", "ed-move-to-end" }, { "\\e[3~", "ed-delete-next-char" },
    { "\\e[1;5C", "em-next-word" }, { "\\e[1;5D", "ed-prev-word" },
    { "^R", "em-inc-search-prev" }, { "^W", "ed-delete-prev-word" },
};

/* ---- the editor ---- */

static wchar_t *prompt_of(EditLine *el)
{
    line_edit *e = NULL;
    el_get(el, EL_CLIENTDATA, &e);
    return e->prompt;
}

/* Widths of characters are the locale's; where it has no UTF-8, the C library's own has. */
static bool has_utf8(void)
{
    for (int i = 0; i < 2; i++)
        if (setlocale(LC_CTYPE, i ? "C.UTF-8" : "") && strcmp(nl_langinfo(CODESET), "UTF-8") == 0)
            return true;
    return false;
}

static void set_up(line_edit *e)
{
    EditLine *el = e->el;
    el_set(el, EL_CLIENTDATA, e);
    el_wset(el, EL_PROMPT, prompt_of);
    el_set(el, EL_EDITOR, "emacs");
    el_set(el, EL_SIGNAL, 0);
    el_wset(el, EL_HIST, history_w, e->history);
    el_wset(el, EL_GETCFN, get_char);
    for (size_t i = 0; i < LQ_COUNT(functions); i++)
        el_set(el, EL_ADDFN, functions[i].name, functions[i].help, functions[i].run);
    for (size_t i = 0; i < LQ_COUNT(bindings); i++)
        el_set(el, EL_BIND, bindings[i].keys, bindings[i].function, NULL);
    el_source(el, NULL); /* the user's own ~/.editrc */
    history_w(e->history, &e->event, H_SETSIZE, HISTORY_MESSAGES);
    history_w(e->history, &e->event, H_SETUNIQUE, 1);
}

lq_status line_edit_open(line_edit **out, line_edit_byte byte, void *user, lq_err *err)
{
    const char *term = getenv("TERM");
    *out = NULL;
    if (!term || !term[0] || strcmp(term, "dumb") == 0 || !has_utf8()) return LQ_OK;
    line_edit *e = calloc(1, sizeof *e);
    if (!e) return lq_fail(err, LQ_ENOMEM, "out of memory");
    e->byte = byte;
    e->user = user;
    const struct sigaction a = { .sa_handler = on_signal };
    for (size_t i = 0; i < LQ_COUNT(signals); i++)
        sigaction(signals[i], &a, &e->before[i]);
    e->el = el_init("llmq", stdin, stderr, stderr);
    e->history = history_winit();
    if (e->el && e->history) {
        set_up(e);
        *out = e;
        return LQ_OK;
    }
    line_edit_close(e);
    return lq_fail(err, LQ_ENOMEM, "out of memory");
}

bool line_edit_read(line_edit *e, const char *prompt, lq_buf *text)
{
    int n = 0;
    swprintf(e->prompt, LQ_COUNT(e->prompt), L"%s", prompt);
    mark_pastes(true);
    const wchar_t *line = el_wgets(e->el, &n);
    mark_pastes(false);
    if (!line || n <= 0) return false;
    while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
        n--;
    for (int i = 0; i < n; i++)
        lq_buf_cp(text, (uint32_t)line[i]);
    return !text->oom;
}

void line_edit_remember(line_edit *e, const char *text)
{
    wchar_t *w = wide_of(text);
    if (w && w[0]) history_w(e->history, &e->event, H_ENTER, w);
    free(w);
}

void line_edit_close(line_edit *e)
{
    if (!e) return;
    for (size_t i = 0; i < LQ_COUNT(signals); i++)
        sigaction(signals[i], &e->before[i], NULL);
    if (e->el) el_end(e->el);
    if (e->history) history_wend(e->history);
    free(e);
}

#else

lq_status line_edit_open(line_edit **e, line_edit_byte byte, void *user, lq_err *err)
{
    (void)byte, (void)user, (void)err;
    *e = NULL;
    return LQ_OK;
}

bool line_edit_read(line_edit *e, const char *prompt, lq_buf *text)
{
    (void)e, (void)prompt, (void)text;
    return false;
}

void line_edit_remember(line_edit *e, const char *text) { (void)e, (void)text; }

void line_edit_close(line_edit *e) { (void)e; }

#endif
