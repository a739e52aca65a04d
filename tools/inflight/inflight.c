/* tools/inflight/inflight.c - see inflight.h. */
#include "tools/inflight/inflight.h"

#include "base/clock.h"
#include "base/path.h"
#include "kernels/ops.h"
#include "quantize/job/job.h"
#include "tools/cli/carried_tok.h"
#include "tools/cli/load.h"
#include "tools/cli/outputs.h"
#include "tools/inflight/words.h"
#include "tools/report/quantize_report.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define F(field) offsetof(inflight_opts, field)
const opt_row inflight_rows[INFLIGHT_N] = {
    { "quantize", 0, OPT_STR, F(scheme), .arg = "SCHEME",
      .help =
          "quantize MODEL first, layer by layer, as `llmq quantize` does without text: nf4, fp4, "
          "int8, u4-g128, u8-g128, u4-g64-asym, ...; the file goes to $TMPDIR and is gone at the "
          "end" },
    { "quantize-cache", 0, OPT_STR, F(cache), .arg = "FILE.llmq",
      .help = "... to this file, which stays and is used the next time; one of another model or "
              "scheme is refused" },
};

/* What was asked for. */
typedef struct {
    cmd_ctx *c;
    const char **model; /* the value that names it */
    const char *word, *cache;
    qz_opts how;
} inflight;

/* The first argument of a command, or its --model. NULL: neither was given. */
static const char **model_of(cmd_ctx *c, void *opts)
{
    if (c->argc) return &c->argv[0];
    for (const opt_group *g = c->cmd->groups; g->rows; g++)
        for (size_t i = 0; i < g->n; i++)
            if (g->rows[i].files == FILES_MODEL && strcmp(g->rows[i].name, "model") == 0) {
                const char **field = (void *)((uint8_t *)opts + g->base + g->rows[i].off);
                return *field ? field : NULL;
            }
    return NULL;
}

static lq_status check_cache(const inflight *f, const src_source *src, lq_err *err)
{
    static const char option[] = "--quantize-cache";
    if (!f->cache) return LQ_OK;
    lq_status s = output_check_place(option, f->cache, false, src, *f->model, err);
    return s ? s : output_check_ending(option, f->cache, "llmq", false, err);
}

static void say_result(const inflight *f, const qz_result *r, double seconds)
{
    char in[16], out[16];
    if (r->resumed < 0)
        prog_say(LOG_INFO, "%s: is %s as %s already", f->cache, *f->model, f->word);
    else
        prog_say(LOG_INFO, "%s: quantized to %s by %s, %s of %s, in %.2f s", *f->model, f->word,
                 f->how.method->name, opt_size_text(out, sizeof out, (double)r->bytes_out),
                 opt_size_text(in, sizeof in, (double)r->bytes_in), seconds);
}

/* MODEL to the file `out`. */
static lq_status quantize_to(const char *out, const inflight *f, lq_err *err)
{
    const double start = lq_now();
    src_source *src = NULL;
    pool *p = NULL;
    carried_tok tok = { 0 };
    qz_result r = { 0 };
    lq_status s = src_open(&src, *f->model, &(src_opts){ .need_config = true }, err);
    if (s) return s;
    load_say_notes(*f->model, src);
    s = check_cache(f, src, err);
    if (!s) s = pool_open(&p, f->c->threads, err);
    if (!s) s = carried_tok_open(&tok, src, false, err);
    const qz_job job = { .o = &f->how,
                         .resume = f->cache != NULL,
                         .keep_other = f->cache != NULL,
                         .tokenizer = tok.data,
                         .tokenizer_bytes = tok.bytes,
                         .voice = qrep_voice,
                         .view = qrep_view };
    if (!s && (s = qz_run(&r, src, out, &job, p, f->c->job, err))) lq_wrap(err, s, "--quantize");
    prog_end();
    if (!s) say_result(f, &r, lq_now() - start);
    qz_result_free(&r);
    carried_tok_close(&tok);
    pool_close(p);
    src_close(src);
    return s;
}

/* `file` in MODEL's place. */
static void take_place(inflight *f, const char *file)
{
    f->c->named = *f->model;
    f->c->packed = *f->model = file;
}

/* The file stays open, without a name, until the process ends. */
static lq_status take_unnamed(inflight *f, const char *file, lq_err *err)
{
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return lq_fail(err, LQ_EIO, "%s: %s", file, strerror(errno));
    snprintf(f->c->unnamed, sizeof f->c->unnamed, "/proc/self/fd/%d", fd);
    take_place(f, f->c->unnamed);
    return LQ_OK;
}

static lq_status make_unnamed(inflight *f, lq_err *err)
{
    char dir[4200], file[4300];
    if (access("/proc/self/fd", X_OK) != 0)
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "--quantize: needs /proc, which is not there: expected --quantize-cache FILE");
    lq_status s = lq_temp_folder(dir, sizeof dir, err);
    if (s) return s;
    s = lq_path_join(file, sizeof file, dir, "model.llmq", err);
    if (!s) s = quantize_to(file, f, err);
    if (!s) s = take_unnamed(f, file, err);
    unlink(file);
    rmdir(dir);
    return s;
}

lq_status inflight_make(cmd_ctx *c, void *opts, lq_err *err)
{
    inflight f = { .c = c,
                   .word = opt_value(c, "quantize"),
                   .cache = opt_value(c, "quantize-cache"),
                   .model = model_of(c, opts) };
    if (f.cache && !f.word) return lq_fail(err, LQ_EUSAGE, "--quantize-cache needs --quantize");
    if (!f.word || !f.model) return LQ_OK; /* the command says that there is no MODEL */
    lq_status s = inflight_word(&f.how, f.word, err);
    if (!s) s = k_init(opt_value(c, "kernels"), err);
    if (s || !f.cache) return s ? s : make_unnamed(&f, err);
    s = quantize_to(f.cache, &f, err);
    if (!s) take_place(&f, f.cache);
    return s;
}
