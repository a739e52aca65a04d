/* tools/cmd_verify.c - `llmq verify`: are the bytes those that were written, and the weights those
 * of the source? */
#include "tools/cmds.h"
#include "tools/verify/verify.h"
#include "tools/verify/verify_against.h"
#include "tools/verify/verify_sums.h"
#include "tools/verify/verify_text.h"

#include "base/file.h"
#include "base/json.h"
#include "base/path.h"
#include "formats/llmq/llmq.h"
#include "formats/source/source.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    const char *against;
    bool runs;
} verify_opts;

#define F(field) offsetof(verify_opts, field)
static const opt_row rows[] = {
    { "against", 0, OPT_STR, F(against), .arg = "SRC", .files = FILES_MODEL,
      .help = "the model it was made from: compare every weight, within the scheme's bound" },
    { "runs", 0, OPT_FLAG, F(runs),
      .help = "exit code 4 also where the bytes are right but llmq cannot run the model: an "
              "architecture, a setting, a layout or a tokenizer that it does not know or misses" },
};

static void add_failure(verdict *v, const char *name, lq_status *s, const lq_err *why)
{
    const int code = lq_exit_code(*s);
    if (code != lq_exit_code(LQ_EFORMAT) && code != lq_exit_code(LQ_ECHECK))
        return; /* I/O, memory */
    verdict_add(v, name, why->msg);
    *s = LQ_OK;
}

/* ---- the file by itself ---- */
static lq_status check_sums(verdict *v, const char *path, lq_err *err)
{
    lqf_file f;
    lq_status s = lqf_open(&f, path, err);
    if (s) return s;
    s = lqf_verify(&f, v->c->job, verdict_add, v, err);
    if (s == LQ_ECHECK) s = LQ_OK; /* all reported */
    for (size_t i = 0; i < f.n_tensors; i++)
        for (int p = 0; p < QT_N_PLANES; p++)
            v->checked += f.tensors[i].t.plane[p].bytes != 0;
    v->checked += (int64_t)f.n_blobs;
    lqf_close(&f);
    return s;
}

/* `count`: tensors are what is checked; else their checksums were. */
static lq_status check_values(verdict *v, const src_source *src, bool count)
{
    for (int64_t i = 0; i < src_n_tensors(src); i++) {
        lq_err why;
        lq_status s = src_check_values(src, src_tensor_at(src, i), &why);
        if (s) verdict_add(v, src_tensor_at(src, i)->name, why.msg);
        v->checked += count;
        if (lq_stopped(v->c->job)) return LQ_EINTR;
    }
    return LQ_OK;
}

/* Has the model every tensor that its architecture needs, in the right shape? */
static void check_roles(verdict *v, const src_source *src)
{
    const arch_config *c = src_config(src);
    for (int r = 0; c && r < ARCH_N_ROLES; r++) {
        const int64_t n = arch_n_tensors(c, (arch_role)r);
        for (int64_t at = 0; at < (c->layers + 1) * n; at++) {
            const int64_t l = at / n - 1; /* -1: outside layers */
            const src_tensor *t, *bias;
            lq_err why;
            if (arch_role_per_layer((arch_role)r) != (l >= 0)) continue;
            if (src_role(src, (arch_role)r, l, at % n, &t, &bias, &why))
                verdict_add(v, arch_role_text((arch_role)r), why.msg);
        }
    }
}

/* ---- the command ---- */
static bool is_llmq(const char *path)
{
    lq_map m;
    if (lq_is_dir(path) || lq_map_open(&m, path, NULL)) return false;
    const bool yes = m.size >= sizeof lqf_magic && memcmp(m.data, lqf_magic, 4) == 0;
    lq_map_close(&m);
    return yes;
}

/* Bytes that llmq does not know how to run may be right all the same; a config that says nonsense
 * or is not there is a finding: tensors alone are no model. */
static void check_fit(verdict *v, const src_source *src)
{
    lq_status as;
    const char *why = src_unfit(src, &as);
    if (!why) return;
    snprintf(v->unfit, sizeof v->unfit, "%s", why);
    if (as != LQ_EUNSUPPORTED) verdict_add(v, "config", why);
}

static bool can_be_read(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) &&
           access(path, R_OK) == 0;
}

/* And of a folder all files in it: of one that cannot be read nobody knows what it is. */
static bool all_can_be_read(const char *path)
{
    char file[4200];
    bool all = can_be_read(path);
    DIR *d = all && lq_is_dir(path) ? opendir(path) : NULL;
    for (struct dirent *e; d && all && (e = readdir(d));)
        all = lq_path_join(file, sizeof file, path, e->d_name, NULL) || !lq_exists(file) ||
              access(file, R_OK) == 0;
    if (d) closedir(d);
    return all;
}

/* What is there, can be read and is no whole model is a finding, whatever its format; not what is
 * of a kind that llmq does not know. */
static lq_status cannot_open(verdict *v, const char *path, lq_status s, bool llmq, lq_err *err)
{
    if (!all_can_be_read(path) || (!v->n_bad && (s == LQ_EUNSUPPORTED || s == LQ_EUSAGE))) return s;
    if (s == LQ_EUSAGE) s = LQ_EFORMAT; /* sums were wrong: several models are one more finding */
    add_failure(v, llmq ? "header" : "model", &s, err);
    if (s) return s;
    v->checked++;
    v->unopened = true;
    snprintf(v->unfit, sizeof v->unfit, "%s", err->msg);
    return LQ_OK;
}

static lq_status check_all(verdict *v, const char *path, const char *against, bool sums,
                           lq_err *err)
{
    src_source *src = NULL;
    char file[4200];
    lq_status s = sums ? verify_sums(v, path, err) : LQ_OK;
    if (s) return s;
    s = src_locate(file, sizeof file, path, err);
    const bool llmq = !s && is_llmq(file);
    if (!s) s = src_open(&src, file, NULL, err);
    if (s) return cannot_open(v, path, s, llmq, err);
    verify_beside(v, src, path);
    s = llmq ? check_sums(v, file, err) : LQ_OK;
    if (!s) s = check_values(v, src, !llmq);
    if (!s) s = src_check_cover(src, verdict_add, v, err);
    if (!s) check_fit(v, src);
    if (!s) s = verify_text(v, src, err);
    if (!s && !v->unfit[0]) check_roles(v, src);
    if (!s && against) s = verify_against(v, src, against, err);
    if (s == LQ_EINTR) lq_fail(err, s, "interrupted");
    src_close(src);
    return s;
}

static void say_unfit(const verdict *v)
{
    if (v->unfit[0] && !v->unopened) prog_say(LOG_WARN, "llmq cannot run it: %s", v->unfit);
}

static lq_status report_json(verdict *v, bool ok, lq_err *err)
{
    cJSON *doc = cJSON_CreateObject();
    bool built = doc && cJSON_AddBoolToObject(doc, "ok", ok) &&
                 cJSON_AddNumberToObject(doc, "checked", (double)v->checked) &&
                 cJSON_AddBoolToObject(doc, "tokenizer", v->tokenizer) &&
                 cJSON_AddBoolToObject(doc, "runs", !v->unfit[0]) &&
                 (!v->unfit[0] || cJSON_AddStringToObject(doc, "why_not", v->unfit));
    cJSON_AddItemToObject(doc, "bad", v->bad);
    cJSON_AddItemToObject(doc, "not_checked", v->beside);
    v->bad = v->beside = NULL;
    if (built) return cmd_print_json(doc, err);
    cJSON_Delete(doc);
    return lq_fail(err, LQ_ENOMEM, "no memory for the report");
}

static lq_status verify_report(verdict *v, const char *path, bool must_run, lq_err *err)
{
    const bool ok = v->n_bad == 0 && (!must_run || !v->unfit[0]);
    if (v->c->json) {
        lq_status s = report_json(v, ok, err);
        if (s) return s;
    } else if (v->unfit[0] && v->n_bad == 0) {
        printf("%s: %" PRId64 " checked, the bytes are right; llmq cannot run it: %s\n", path,
               v->checked, v->unfit);
    } else if (ok) {
        printf("%s: ok, %" PRId64 " checked\n", path, v->checked);
    }
    if (v->n_bad) say_unfit(v);
    if (v->n_bad)
        return lq_fail(err, LQ_ECHECK, "%s: %" PRId64 " found that do not fit, %" PRId64 " checked",
                       path, v->n_bad, v->checked);
    return ok ? LQ_OK : lq_fail(err, LQ_ECHECK, "--runs: llmq cannot run it");
}

static lq_status check(verdict *v, const cmd_ctx *c, const char *path, const char *against,
                       bool sums, lq_err *err)
{
    *v = (verdict){ .c = c, .bad = cJSON_CreateArray(), .beside = cJSON_CreateArray() };
    lq_status s = v->bad && v->beside ? check_all(v, path, against, sums, err) : LQ_ENOMEM;
    if (v->no_memory || s == LQ_ENOMEM) s = lq_fail(err, LQ_ENOMEM, "no memory for the report");
    return s;
}

static void verdict_free(verdict *v)
{
    cJSON_Delete(v->bad);
    cJSON_Delete(v->beside);
}

/* ---- for other commands ---- */
lq_status verify_model(const cmd_ctx *c, const char *path, bool sums, lq_err *err)
{
    cmd_ctx quiet = *c;
    quiet.json = false;
    verdict v;
    lq_status s = check(&v, &quiet, path, NULL, sums, err);
    if (!s && v.n_bad)
        s = lq_fail(err, LQ_ECHECK, "%s: llmq verify says no: %" PRId64 " found that do not fit",
                    path, v.n_bad);
    if (!s) say_unfit(&v);
    verdict_free(&v);
    return s;
}

static lq_status verify_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const verify_opts *o = opts;
    verdict v;
    lq_status s = check(&v, c, c->argv[0], o->against, true, err);
    if (!s) s = verify_report(&v, c->argv[0], o->runs, err);
    verdict_free(&v);
    return s;
}

const cmd_row cmd_verify = {
    .name = "verify",
    .summary = "check every checksum; compare the weights with their source",
    .details =
        "A .llmq file: the header, every plane and file in it, and that padding is zero. A GGUF "
        "file: its layout, nothing between or after the tensors, finite numbers. A Hugging Face "
        "folder: the layout of its files, that all tensors are there and finite, and, where it was"
        " published, SHA256SUMS: every file as it says, and no other file of a model. Of all: that"
        " tokenizer, chat templates and generation defaults load. With --against every weight is "
        "compared with its source: within half a step of its scheme, or, for methods that move "
        "errors between weights (gptq, awq) and models of others, each row within 2 steps (root "
        "mean square; 3.2 where it has 8 inputs). Factors that were folded from one tensor into "
        "another are fitted first; "
        "norms and biases of such a model are not compared. After --rotate the source is rotated "
        "the same way. The recipe comes from the file, or "
        "from what llmq convert wrote beside it. Exit code 4 when anything does not fit, also "
        "where it is cut too short to be opened. A model that is whole but that llmq cannot run is "
        "reported as such, with exit code 0 (4 with --runs).",
    .args = { { "FILE", 1, 1, "a .llmq, .gguf or .safetensors file, or a folder", FILES_MODEL } },
    .groups = { OPT_GROUP("Options", rows, 0) },
    .examples = "llmq verify model.llmq\0"
                "llmq verify model.llmq --against models/novels-6m --json\0",
    .opts_bytes = sizeof(verify_opts),
    .run = verify_run,
};
