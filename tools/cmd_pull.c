/* tools/cmd_pull.c - `llmq pull TARGET -o DIR`. */
#include "tools/cli/outputs.h"
#include "tools/cli/target_opts.h"
#include "tools/cmds.h"
#include "tools/verify/verify.h"

typedef struct {
    const char *out;
    opt_target target;
} pull_opts;

#define F(field) offsetof(pull_opts, field)
static const opt_row rows[] = {
    { "out", 'o', OPT_STR, F(out), .arg = "DIR", .required = true,
      .help = "folder to make; one that llmq made is replaced" },
};

static lq_status check(void *user, const char *dir, lq_err *err)
{
    return verify_model(user, dir, false, err); /* pull itself checks the sums */
}

static lq_status pull_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const pull_opts *o = opts;
    cmd_ctx ctx = *c;
    pub_files fs = { NULL, 0 };
    pub_result r = { .same = false };
    lq_status s = target_opts_check(&o->target, c->argv[0], err);
    if (!s) s = output_check_ending("--out", o->out, "pull's result", true, err);
    if (s) return s;
    const pub_opts p = target_opts(&o->target, c);
    s = pub_pull(&r, &fs, c->argv[0], o->out, &p, check, &ctx, err);
    prog_end();
    if (!s) s = target_report(c, c->argv[0], &fs, &r, "pulled", err);
    pub_files_free(&fs);
    return s;
}

const cmd_row cmd_pull = {
    .name = "pull",
    .summary = "fetch a published model, resuming, and verify it",
    .details =
        "The folder appears when all its files are there, their digests match and llmq verify "
        "passes; until then they are in DIR.resume, where the next run goes on. A name that leads "
        "out of the folder, a link, a file that is not part of a model, a wrong size or digest is "
        "refused. From git any model of safetensors, GGUF or .llmq will do; a folder and a "
        "registry's artifact are those of llmq publish.",
    .args = { { "TARGET", 1, 1, "dir:PATH, oci://REGISTRY/NAME:TAG (or @sha256:...), git:URL" } },
    .groups = { OPT_GROUP("Options", rows, 0),
                OPT_GROUP("Reaching the target", opt_target_rows, F(target)) },
    .examples =
        "llmq pull oci://localhost:5000/novels:awq -o novels-awq\0"
        "llmq pull git:https://example.org/me/novels-gptq.git --branch main -o novels-gptq\0",
    .opts_bytes = sizeof(pull_opts),
    .run = pull_run,
};
