/* tools/cmd_handover.c - `llmq handover ENGINE MODEL`. */
#include "publish/handover.h"
#include "tools/cli/load.h"
#include "tools/cmds.h"

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

static lq_status handover_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    (void)opts;
    src_source *src = NULL;
    cJSON *doc = NULL;
    lq_status s = src_open(&src, c->argv[1], &(src_opts){ .need_config = true }, err);
    if (!s) s = check_tokenizer(src, err);
    if (!s) s = handover_plan(&doc, src, src_path(src), c->argv[0], err);
    src_close(src);
    if (s) return s;
    if (c->json) return cmd_print_json(doc, err);
    print_plan(doc, c->argv[0]);
    cJSON_Delete(doc);
    return LQ_OK;
}

const cmd_row cmd_handover = {
    .name = "handover",
    .summary = "the commands that run a model in vLLM, SGLang or llama.cpp, and what differs",
    .details =
        "Prints a script: first what turns the model into files that the engine reads, where "
        "that is needed, then the line that starts it; as comments the files and the "
        "differences. Nothing is run or written.",
    .args = { { "ENGINE", 1, 1, "vllm, sglang or llama.cpp" },
              { "MODEL", 1, 1, "what any command of llmq takes", FILES_MODEL } },
    .examples = "llmq handover vllm novels-awq.llmq\0"
                "llmq handover llama.cpp models/novels-6m --json\0",
    .run = handover_run,
};
