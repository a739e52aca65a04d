/* tools/load.c - see load.h. */
#include "tools/load.h"

lq_status load_start(pool **p, const cmd_ctx *c, const opt_model *o, lq_err *err)
{
    *p = NULL;
    lq_status s = opt_model_start(o, err);
    if (!s) opt_note_device(c, o);
    return s ? s : pool_open(p, c->threads, err);
}

const char *load_name(char *buf, size_t n, const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t from = end;
    while (from > 0 && path[from - 1] != '/')
        from--;
    if (end - from > 5 && memcmp(path + end - 5, ".llmq", 5) == 0) end -= 5;
    snprintf(buf, n, "%.*s", (int)(end - from), path + from);
    return buf;
}

void load_note(const char *path, const char *text) { prog_say(LOG_INFO, "%s: %s", path, text); }

lq_status load_model_open(load_model *l, const char *path, pool *p, const cmd_ctx *c, lq_err *err)
{
    double start = prog_now();
    lq_status s = load_weights(l, path, opt_given(c, "verify"), p, c->job, load_note, err);
    if (s) return s;
    char size[16];
    prog_say(LOG_DEBUG, "%s: %s of weights in %.2f s", path,
             opt_size_text(size, sizeof size, (double)l->m.weight_bytes), prog_now() - start);
    return LQ_OK;
}
