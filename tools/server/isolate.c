/* tools/server/isolate.c - see isolate.h. */
#include "tools/server/isolate_int.h"

#include <stdio.h>
#include <time.h>

const char *const iso_words[] = { "auto", "off", "required", NULL };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = true };
#else
enum { SANITIZED = false };
#endif

static void note(char *out, size_t room, const char *text)
{
    const size_t used = strlen(out);
    snprintf(out + used, room - used, "%s%s", used ? ", " : "", text);
}

/* One of the parts: it holds, or `why` not. */
static lq_status part(iso_report *r, iso_mode mode, const char *name, const char *why, lq_err *err)
{
    char text[160];
    if (!why) {
        note(r->on, sizeof r->on, name);
        return LQ_OK;
    }
    snprintf(text, sizeof text, "%s: %s", name, why);
    note(r->missing, sizeof r->missing, text);
    return mode == ISO_REQUIRED ? lq_fail(err, LQ_EUNSUPPORTED, "--isolation required: %s", text)
                                : LQ_OK;
}

lq_status iso_files(iso_report *r, const iso_want *w, lq_err *err)
{
    *r = (iso_report){ "", "" };
    if (w->mode == ISO_OFF) return LQ_OK;
    tzset(); /* reads the time zone, wherever it lies */
    lq_status s = part(r, w->mode, "no new privileges", iso_keep_rights(), err);
    bool all = true;
    const char *why = SANITIZED ? "not in a sanitized build" : iso_restrict_files(&all, w);
    return s ? s : part(r, w->mode, all ? "files" : "files (but of libraries' threads)", why, err);
}

lq_status iso_calls(iso_report *r, const iso_want *w, lq_err *err)
{
    if (w->mode == ISO_OFF) return LQ_OK;
    const char *why = SANITIZED ? "not in a sanitized build" : iso_restrict_calls(w);
    return part(r, w->mode, "system calls", why, err);
}
