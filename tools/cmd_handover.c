/* tools/cmd_handover.c - `llmq handover ENGINE MODEL`. */
#include "base/out_file.h"
#include "publish/handover.h"
#include "publish/handover_files.h"
#include "tools/cli/load.h"
#include "tools/cli/outputs.h"
#include "tools/cmds.h"

#include <errno.h>
#include <unistd.h>

typedef struct {
    int emit;
    const char *out;
    bool force;
    int64_t parts;
} handover_opts;

#define F(field) offsetof(handover_opts, field)
static const opt_row rows[] = {
    { "emit", 0, OPT_ENUM, F(emit), .def = "none", .words = handover_forms,
      .help = "write a file too, for vllm or sglang: Ray Serve's LLM application, KServe's runtime "
              "and service, KServe's LLMInferenceService for llm-d, Docker Compose" },
    { "out", 'o', OPT_STR, F(out), .arg = "FILE",
      .help = "its name (default: NAME-ENGINE.FORM.yaml, here)" },
    { "tensor-parallel-size", 0, OPT_INT, F(parts), .def = "1", .lo = 1, .hi = 64,
      .help = "in that file: over how many GPUs the model is divided" },
    { "force", 0, OPT_FLAG, F(force), .help = "replace a file that is there" },
};

/* before: "" of commands; else a comment's, which stays in its line. */
static void print_list(const cJSON *doc, const char *key, const char *before)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, js_get(doc, key))
        printf("%s%s\n", before, *before ? lq_printable(v->valuestring) : v->valuestring);
}

static void print_plan(const cJSON *doc, const char *to)
{
    const char *command = NULL;
    js_str(doc, "command", false, &command, NULL);
    print_list(doc, "prepare", "");
    if (command)
        printf("%s\n", command);
    else
        printf("# %s cannot load this model\n", to);
    if (js_get(doc, "files")->child) printf("\n# files that it reads\n");
    print_list(doc, "files", "#   ");
    printf("\n# what differs from llmq serve\n");
    print_list(doc, "differences", "# - ");
    if (js_get(doc, "written"))
        printf("\n# written\n#   %s\n", lq_printable(js_get(doc, "written")->valuestring));
}

/* The engine would meet it only after all that was prepared. */
static lq_status check_tokenizer(const src_source *src, lq_err *err)
{
    load_tok tok;
    const lq_status s = load_tok_open(&tok, src, src_path(src), err);
    if (!s) load_tok_close(&tok);
    if (s != LQ_ENOENT && s != LQ_EUNSUPPORTED) return s;
    prog_say(LOG_WARN, "%s", err->msg);
    return LQ_OK;
}

/* Where relative paths are from the file's folder: the plan's are from this one. */
static lq_status here_from(char *out, size_t n, const char *file, lq_err *err)
{
    if (!strchr(file, '/'))
        snprintf(out, n, ".");
    else if (!getcwd(out, n))
        return lq_fail(err, LQ_EIO, "the working folder: %s", strerror(errno));
    return LQ_OK;
}

static lq_status write_file(cJSON *doc, const handover_opts *o, const src_source *src,
                            const char *given, lq_err *err)
{
    const handover_form form = (handover_form)o->emit;
    char name[128], folder[4200];
    handover_file_name(name, sizeof name, doc, form);
    const char *out = o->out ? o->out : name;
    lq_buf b = { 0 };
    lq_status s = here_from(folder, sizeof folder, out, err);
    if (!s) s = handover_file(&b, doc, form, o->parts, folder, err);
    if (!s) s = output_check_place("--out", out, false, src, given, err);
    if (!s && !o->force && access(out, F_OK) == 0)
        s = lq_fail(err, LQ_EUSAGE,
                    "--out: expected a new name, or --force, found '%s', which is there", out);
    if (!s) s = lq_write_file(out, b.p, b.n, err);
    if (!s) cJSON_AddStringToObject(doc, "written", out);
    lq_buf_free(&b);
    return s;
}

static lq_status handover_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const handover_opts *o = opts;
    src_source *src = NULL;
    cJSON *doc = NULL;
    if (o->emit == HAND_NONE && (o->out || o->force || o->parts > 1))
        return lq_fail(err, LQ_EUSAGE, "--out, --force and --tensor-parallel-size go with --emit");
    lq_status s = src_open(&src, c->argv[1], &(src_opts){ .need_config = true }, err);
    if (!s) s = check_tokenizer(src, err);
    if (!s) s = handover_plan(&doc, src, src_path(src), c->argv[0], err);
    if (!s && o->emit != HAND_NONE) s = write_file(doc, o, src, c->argv[1], err);
    src_close(src);
    if (!s && c->json) return cmd_print_json(doc, err);
    if (!s) print_plan(doc, c->argv[0]);
    cJSON_Delete(doc);
    return s;
}

const cmd_row cmd_handover = {
    .name = "handover",
    .summary = "the commands that run a model in vLLM, SGLang or llama.cpp, and what differs",
    .details =
        "Prints a script: first what turns the model into files that the engine reads, where "
        "that is needed, then the line that starts it; as comments the files and the "
        "differences. Nothing is run. --emit writes what runs it in containers or on a cluster, "
        "with "
        "the model's limits in it.",
    .args = { { "ENGINE", 1, 1, "vllm, sglang or llama.cpp" },
              { "MODEL", 1, 1, "what any command of llmq takes", FILES_MODEL } },
    .examples = "llmq handover vllm novels-awq.llmq\0"
                "llmq handover llama.cpp models/novels-6m --json\0"
                "llmq handover sglang novels-awq.llmq --emit compose\0",
    .groups = { OPT_GROUP("Options", rows, 0) },
    .opts_bytes = sizeof(handover_opts),
    .run = handover_run,
};
