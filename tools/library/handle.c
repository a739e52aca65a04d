/* tools/library/handle.c - see handle.h; the functions of include/llmq.h that need no model. */
#include "tools/library/handle.h"

#include "base/clock.h"
#include "base/locale.h"
#include "base/version.h"
#include "tools/cli/progress.h"

#include <stdio.h>
#include <stdlib.h>

#define SAME(name) _Static_assert((int)LLMQ_##name == (int)LQ_##name, #name)
SAME(OK);
SAME(EIO);
SAME(ENOMEM);
SAME(EBUSY);
SAME(EDEVICE);
SAME(EUSAGE);
SAME(EFORMAT);
SAME(ESHAPE);
SAME(EVALUE);
SAME(EUNSUPPORTED);
SAME(ENOENT);
SAME(ECHECK);
SAME(EINTR);
_Static_assert(LQ_N_STATUSES == LLMQ_EINTR + 1, "llmq.h has every status");
_Static_assert(sizeof(llmq_error) == 512, "part of the ABI");

static const double call_secs = 0.05; /* between two calls of a progress callback */

int32_t llmq_abi(void) { return LLMQ_ABI; }
const char *llmq_version(void) { return LLMQ_VERSION; }
void llmq_free(void *p) { free(p); }

/* ---- messages ---- */
static struct {
    pthread_mutex_t lock;
    llmq_on_message f;
    void *user;
} listener = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void pass_on(void *user, log_level level, const char *text)
{
    (void)user;
    pthread_mutex_lock(&listener.lock);
    if (listener.f) listener.f(listener.user, (int32_t)level, text);
    pthread_mutex_unlock(&listener.lock);
}

static void listen_once(void) { prog_listen(pass_on, NULL); }

void llmq_listen(llmq_on_message f, void *user)
{
    pthread_mutex_lock(&listener.lock);
    listener.f = f;
    listener.user = user;
    pthread_mutex_unlock(&listener.lock);
}

/* ---- a call ---- */
void *lib_enter(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, listen_once);
    return lq_locale_c();
}

int32_t lib_leave(void *locale, lq_status s, const lq_err *err, llmq_error *e)
{
    lq_locale_back(locale);
    if (!e) return (int32_t)s;
    e->code = (int32_t)s;
    const char *text = !s ? "" : err->msg[0] ? err->msg : lq_status_text(s);
    snprintf(e->text, sizeof e->text, "%.*s", (int)sizeof e->text - 1, text);
    return (int32_t)s;
}

static lq_status read_size(size_t *size, const void *from, const char *name, lq_err *err)
{
    memcpy(size, from, sizeof *size);
    if (*size >= sizeof *size && *size <= 4096) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE, "%s.size: expected sizeof(%s), found %zu", name, name, *size);
}

lq_status lib_read(void *to, size_t n, const void *from, const char *name, lq_err *err)
{
    size_t size;
    if (!from) return LQ_OK;
    const lq_status s = read_size(&size, from, name, err);
    if (s) return s;
    const uint8_t *bytes = from;
    for (size_t i = n; i < size; i++)
        if (bytes[i])
            return lq_fail(err, LQ_EUSAGE,
                           "%s: expected what llmq %s knows, found a member of a later version",
                           name, LLMQ_VERSION);
    memcpy(to, from, size < n ? size : n);
    return LQ_OK;
}

lq_status lib_write(void *to, const void *from, size_t n, const char *name, lq_err *err)
{
    size_t size;
    const lq_status s = read_size(&size, to, name, err);
    if (s) return s;
    const size_t most = size < n ? size : n;
    memcpy((uint8_t *)to + sizeof size, (const uint8_t *)from + sizeof size, most - sizeof size);
    return LQ_OK;
}

lq_status lib_given(const void *p, const char *name, lq_err *err)
{
    return p ? LQ_OK : lq_fail(err, LQ_EUSAGE, "%s: expected a pointer, found NULL", name);
}

/* ---- progress ---- */
static void handle_report(void *user, const char *what, double done, double total)
{
    lib_watch *w = user;
    pthread_mutex_lock(&w->lock);
    const double now = lq_now();
    const bool due = strncmp(w->what, what, sizeof w->what - 1) != 0 || done >= total ||
                     now - w->last >= call_secs;
    if (w->f && due && !atomic_load(&w->stop)) {
        w->last = now;
        snprintf(w->what, sizeof w->what, "%s", what);
        if (w->f(w->user, what, done, total)) atomic_store(&w->stop, 1);
    }
    pthread_mutex_unlock(&w->lock);
}

void lib_watch_init(lib_watch *w, llmq_on_progress f, void *user)
{
    *w = (lib_watch){ .f = f, .user = user };
    pthread_mutex_init(&w->lock, NULL);
    w->job = (lq_job){ .report = handle_report, .user = w, .stop = &w->stop };
}

void lib_watch_free(lib_watch *w) { pthread_mutex_destroy(&w->lock); }
