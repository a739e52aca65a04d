/* tools/cmd_publish.c - `llmq publish MODEL TARGET`. */
#include "base/path.h"
#include "publish/artifact.h"
#include "tools/cli/outputs.h"
#include "tools/cli/target_opts.h"
#include "tools/cmds.h"
#include "tools/verify/verify.h"

#include <cjson/cJSON.h>

typedef struct {
    artifact_opts artifact;
    opt_list evals;
    opt_target target;
    size_t chunk;
    bool dry_run;
} publish_opts;

#define F(field) offsetof(publish_opts, field)
static const opt_row rows[] = {
    { "name", 0, OPT_STR, F(artifact.name), .arg = "NAME",
      .help = "of the model in its card (default: the file's or folder's)" },
    { "base-model", 0, OPT_STR, F(artifact.base_model), .arg = "ORG/MODEL",
      .help = "what it was made from, for the card" },
    { "license", 0, OPT_STR, F(artifact.license), .arg = "ID",
      .help =
          "as the hub names it: apache-2.0, mit, ... (default: what the model's own card says)" },
    { "license-file", 0, OPT_STR, F(artifact.license_file), .arg = "FILE",
      .help = "goes along as LICENSE (default: the model's own, if it has one)" },
    { "made-from", 0, OPT_STR, F(artifact.made_from), .arg = "FILE",
      .help = "the .llmq that this folder was converted from: its recipe, calibration and "
              "measurements go into the card" },
    { "eval", 0, OPT_LIST, F(evals), .arg = "FILE",
      .help = "what `llmq eval --json` printed, a row of the card's table named as the file" },
    { "dry-run", 0, OPT_FLAG, F(dry_run),
      .help = "verify, make the card and the digests, list the files, write nothing" },
};
static const opt_row upload_rows[] = {
    { "chunk-size", 0, OPT_SIZE, F(chunk), .def = "64M", .lo = 1, .hi = 1e15,
      .help = "oci: bytes of an upload that go in one request" },
};

static void publish_say(const char *text) { prog_say(LOG_WARN, "%s", text); }

static void left_out(const char *name)
{
    const model_file *kind = model_file_of(name);
    prog_say(LOG_WARN,
             kind && kind->weights
                 ? "%s: weights that are no part of the checked model, and stay here"
                 : "%s: is no file of a model, and stays here",
             name);
}

/* Beside the model, where an interrupted upload is remembered. */
static lq_status state_of(char *out, size_t n, const char *path, lq_err *err)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    const int k = snprintf(out, n, "%.*s.resume-publish", (int)len, path);
    return k > 0 && (size_t)k < n ? LQ_OK : lq_fail(err, LQ_EVALUE, "%.100s...: too long", path);
}

/* A folder may be published in its own place, where nothing is left out, but not inside itself. */
static lq_status check_place(bool *own, const src_source *src, const char *path, const char *target,
                             lq_err *err)
{
    const char *dir = strncmp(target, "dir:", 4) == 0 ? target + 4 : NULL;
    *own = dir && lq_same_file(path, dir);
    return !dir || *own ? LQ_OK : output_check_place("target", dir, true, src, path, err);
}

static lq_status make(pub_files *fs, const cmd_ctx *c, const publish_opts *o, lq_err *err)
{
    src_source *src = NULL;
    const char *path = c->argv[0];
    artifact_opts a = o->artifact;
    a.evals = o->evals.v;
    a.n_evals = o->evals.n;
    a.note = publish_say;
    lq_status s = verify_model(c, path, true, err);
    if (!s) s = src_open(&src, path, NULL, err);
    if (!s) s = check_place(&a.in_place, src, path, c->argv[1], err);
    if (!s) s = artifact_make(fs, src, path, &a, left_out, c->job, err);
    src_close(src);
    return s;
}

static lq_status publish_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const publish_opts *o = opts;
    const pub_target *t;
    const char *where;
    char state[4200];
    pub_files fs = { NULL, 0 };
    pub_result r = { .same = false };
    lq_status s = pub_target_find(&t, &where, c->argv[1], err);
    if (!s) s = target_opts_check(&o->target, c->argv[1], err);
    if (!s && t == &pub_dir) s = output_check_ending("target", where, "dir:", true, err);
    if (!s && t->check) s = t->check(where, err);
    if (!s) s = state_of(state, sizeof state, c->argv[0], err);
    pub_opts p = target_opts(&o->target, c);
    p.chunk_bytes = o->chunk;
    p.state = state;
    if (!s) s = make(&fs, c, o, err);
    if (!s && !o->dry_run) s = t->push(&r, where, &fs, &p, err);
    prog_end();
    if (!s)
        s = target_report(c, c->argv[1], &fs, &r, o->dry_run ? "would publish" : "published", NULL,
                          err);
    pub_files_free(&fs);
    return s;
}

const cmd_row cmd_publish = {
    .name = "publish",
    .summary = "verify a model and put it where others can pull it, with a card and digests",
    .details =
        "TARGET is dir:PATH (a folder ready for Hugging Face's hub), oci://REGISTRY/NAME:TAG (an "
        "OCI "
        "artifact; oras pulls it too) or git:URL (git with git-lfs). Added to the model's files: a "
        "card with recipe, calibration, measurements, sizes and how to run it, provenance.json, "
        "the "
        "licence, SHA256SUMS. Only complete models that pass llmq verify are published. The name "
        "of the artifact "
        "(folder, tag, branch) appears or changes last, so nobody pulls half a model; repeat an "
        "interrupted run: it goes on where the target can. Registries are asked over https, on "
        "the "
        "loopback over http unless --ca is given; without --username the entry that `docker login` "
        "wrote counts.",
    .args = { { "MODEL", 1, 1, "a .llmq, .gguf or .safetensors file, or a Hugging Face folder",
                FILES_MODEL },
              { "TARGET", 1, 1, "dir:PATH, oci://REGISTRY/NAME:TAG or git:URL" } },
    .groups = { OPT_GROUP("Options", rows, 0),
                OPT_GROUP("Reaching the target", opt_target_rows, F(target)),
                OPT_GROUP("Uploading", upload_rows, 0) },
    .examples =
        "llmq publish novels-awq.llmq dir:hub/novels-awq --base-model me/novels\0"
        "llmq publish novels-awq.llmq oci://localhost:5000/novels:awq --eval held-out.json\0"
        "llmq publish novels-gptq git:https://example.org/me/novels-gptq.git "
        "--made-from novels-gptq.llmq\0",
    .opts_bytes = sizeof(publish_opts),
    .run = publish_run,
};
