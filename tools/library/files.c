/* tools/library/files.c - llmq_quantize and llmq_convert of include/llmq.h: the commands themselves,
 * with their options as JSON and their document as the result. */
#include "base/json.h"
#include "kernels/ops.h"
#include "tools/cmds.h"
#include "tools/library/handle.h"

#include <stdlib.h>

static lq_status run_command(const cmd_row *cmd, const char *src, const char *dst,
                             const char *options, lib_watch *w, cJSON **doc, lq_err *err)
{
    opt_json j;
    lq_status s = opt_json_parse(&j, cmd, src, dst, options, err);
    if (!s) s = k_hold(opt_value(&j.c, "kernels"), err);
    if (!s) {
        j.c.job = &w->job;
        j.c.result = doc;
        s = cmd->run(&j.c, j.opts, err);
        k_release();
    }
    opt_json_free(&j);
    return s;
}

static int32_t call(const cmd_row *cmd, const char *src, const char *dst, const char *options,
                    llmq_on_progress f, void *user, char **text, llmq_error *e)
{
    void *locale = lib_enter();
    lq_err err = { "" };
    lib_watch w;
    cJSON *doc = NULL;
    if (text) *text = NULL;
    lib_watch_init(&w, f, user);
    lq_status s = run_command(cmd, src, dst, options, &w, &doc, &err);
    if (!s && text && !(*text = js_print(doc, false)))
        s = lq_fail(&err, LQ_ENOMEM, "no memory for the report");
    cJSON_Delete(doc);
    lib_watch_free(&w);
    return lib_leave(locale, s, &err, e);
}

int32_t llmq_quantize(const char *src, const char *dst, const char *options, llmq_on_progress f,
                      void *user, char **report, llmq_error *e)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER; /* lq_map_guard has one user */
    if (pthread_mutex_trylock(&one) == 0) {
        const int32_t code = call(&cmd_quantize, src, dst, options, f, user, report, e);
        pthread_mutex_unlock(&one);
        return code;
    }
    void *locale = lib_enter();
    lq_err err;
    if (report) *report = NULL;
    (void)lq_fail(&err, LQ_EBUSY, "another llmq_quantize runs in this process");
    return lib_leave(locale, LQ_EBUSY, &err, e);
}

int32_t llmq_convert(const char *src, const char *dst, const char *options, llmq_on_progress f,
                     void *user, char **report, llmq_error *e)
{
    return call(&cmd_convert, src, dst, options, f, user, report, e);
}
