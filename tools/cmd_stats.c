/* tools/cmd_stats.c - `llmq stats merge FILE... -o OUT`: shards of `quantize --stats-only` as one file. */
#include "calib/stats_file.h"
#include "tools/cli/outputs.h"
#include "tools/cmds.h"

#include <stdlib.h>

typedef struct {
    const char *out;
} stats_opts;

static const opt_row rows[] = {
    { "out", 'o', OPT_STR, offsetof(stats_opts, out), .arg = "OUT", .required = true,
      .help = "the file that has the sums of all" },
};

static lq_status stats_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const stats_opts *o = opts;
    stats_set *s = NULL;
    if (strcmp(c->argv[0], "merge") != 0)
        return lq_fail(err, LQ_EUSAGE, "expected merge, found '%.60s'", c->argv[0]);
    lq_status st = output_check_own("--out", o->out, c->argv + 1, c->argc - 1, err);
    if (!st) st = output_check_kind("--out", o->out, STATS_BEGIN, "statistics", err);
    if (!st) st = stats_open(&s, c->argv + 1, c->argc - 1, err);
    if (!st) st = stats_merge(o->out, s, err);
    stats_close(s);
    return st;
}

const cmd_row cmd_stats = {
    .name = "stats",
    .summary = "statistics of quantize --stats-only, made apart, put together",
    .details = "The sums are the same whatever the number of shards: they are added in the order "
               "of the fixed parts of the text (--stats-parts).",
    .args = { { "merge", 1, 1, "what is done", FILES_NONE },
              { "FILE", 1, 1024, "shards, all of them", FILES_NONE } },
    .groups = { OPT_GROUP("Options", rows, 0) },
    .examples = "llmq quantize models/novels-6m --stats-only --shard 1/2 -o 1.stats\0"
                "llmq stats merge 1.stats 2.stats -o all.stats\0"
                "llmq quantize models/novels-6m --stats all.stats -o m.llmq -m gptq\0",
    .opts_bytes = sizeof(stats_opts),
    .run = stats_run,
};
