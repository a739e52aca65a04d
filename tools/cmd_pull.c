/* tools/cmd_pull.c - `llmq pull TARGET [-o DIR]`. */
#include "publish/hub/hub.h"
#include "tools/cli/models.h"
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
    { "out", 'o', OPT_STR, F(out), .arg = "DIR",
      .help =
          "folder to make; one that llmq made is replaced. Of hf: may be left out: then the files "
          "are in the hub's cache, which other programs share" },
};

static lq_status check(void *user, const char *dir, lq_err *err)
{
    return verify_model(user, dir, false, err); /* pull itself checks the sums */
}

static lq_status into_folder(const cmd_ctx *c, const char *target, const pull_opts *o,
                             const pub_opts *p, lq_err *err)
{
    cmd_ctx ctx = *c;
    pub_files fs = { NULL, 0 };
    pub_result r = { .same = false };
    lq_status s = output_check_ending("--out", o->out, "pull's result", true, err);
    if (s) return s;
    s = pub_pull(&r, &fs, target, o->out, p, check, &ctx, err);
    prog_end();
    if (!s) s = target_report(c, target, &fs, &r, "pulled", NULL, err);
    pub_files_free(&fs);
    return s;
}

static lq_status into_cache(const cmd_ctx *c, const char *name, const pub_opts *p, lq_err *err)
{
    hub_found f;
    lq_status s = hub_find(&f, name, HUB_MODEL, true, p, err);
    prog_end();
    pub_result r = { .sent = f.fetched, .same = !f.fetched };
    snprintf(r.digest, sizeof r.digest, "%s", f.commit);
    if (!s) s = target_report(c, c->argv[0], &f.files, &r, "pulled", f.path, err);
    hub_found_free(&f);
    return s;
}

static lq_status pull_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const pull_opts *o = opts;
    char named[HUB_REPO + HUB_REVISION + HUB_PICK + 8];
    const char *name = models_name(c->argv[0]), *target = name ? named : c->argv[0];
    if (name) snprintf(named, sizeof named, "hf:%s", name);
    lq_status s = target_opts_check(&o->target, target, err);
    if (s) return s;
    const pub_opts p = target_opts(&o->target, c);
    if (o->out) return into_folder(c, target, o, &p, err);
    return name ? into_cache(c, name, &p, err) : lq_fail(err, LQ_EUSAGE, "--out is required");
}

const cmd_row cmd_pull = {
    .name = "pull",
    .summary = "fetch a published model, resuming, and verify it",
    .details =
        "The folder appears when all its files are there, their digests match and llmq verify "
        "passes; until then they are in DIR.resume, where the next run goes on. A name that leads "
        "out of the folder, a link, a file that is not part of a model, a wrong size or digest is "
        "refused. From git any model of safetensors, GGUF or .llmq will do; a folder and a "
        "registry's artifact are those of llmq publish.\n"
        "hf: is huggingface.co, or HF_ENDPOINT: config, tokenizer and safetensors of a repository, "
        "or of "
        "one with GGUF files the named quantization (else the nearest to Q4_K_M). HF_TOKEN, "
        "HF_HOME, "
        "HF_HUB_CACHE and HF_HUB_OFFLINE are those of huggingface_hub, as is the cache. Every "
        "command "
        "that reads a model takes ORG/NAME, and fetches what the cache does not have.",
    .args = { { "TARGET", 1, 1,
                "hf:ORG/NAME[@REVISION][:FILE or QUANTIZATION], dir:PATH, oci://REGISTRY/NAME:TAG "
                "(or "
                "@sha256:...), git:URL" } },
    .groups = { OPT_GROUP("Options", rows, 0),
                OPT_GROUP("Reaching the target", opt_target_rows, F(target)) },
    .examples =
        "llmq pull Qwen/Qwen3-0.6B\0"
        "llmq pull bartowski/Qwen2.5-7B-Instruct-GGUF:Q5_K_M\0"
        "llmq pull oci://localhost:5000/novels:awq -o novels-awq\0"
        "llmq pull git:https://example.org/me/novels-gptq.git --branch main -o novels-gptq\0",
    .opts_bytes = sizeof(pull_opts),
    .run = pull_run,
};
