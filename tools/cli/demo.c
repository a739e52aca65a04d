/* tools/cli/demo.c - see demo.h. */
#include "tools/cli/demo.h"

#include "base/embed.h"
#include "base/file.h"
#include "base/out_file.h"
#include "base/path.h"

#include <stdlib.h>
#include <string.h>

#define FOLDER "models/novels-1m/"
LQ_EMBED(demo_config, FOLDER "config.json");
LQ_EMBED(demo_generation, FOLDER "generation_config.json");
LQ_EMBED(demo_tokenizer_config, FOLDER "tokenizer_config.json");
LQ_EMBED(demo_tokenizer, FOLDER "tokenizer.json");
LQ_EMBED(demo_weights, FOLDER "model.safetensors");

static const struct {
    const char *name, *data, *end;
} files[] = { { "config.json", demo_config, demo_config_end },
              { "generation_config.json", demo_generation, demo_generation_end },
              { "tokenizer_config.json", demo_tokenizer_config, demo_tokenizer_config_end },
              { "tokenizer.json", demo_tokenizer, demo_tokenizer_end },
              { "model.safetensors", demo_weights, demo_weights_end } };

bool demo_is(const char *value) { return strcmp(value, "demo") == 0 && !lq_exists(value); }

static lq_status find_folder(char *path, size_t n, lq_err *err)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache) return lq_path_join(path, n, cache, "llmq/demo", err);
    if (home && *home) return lq_path_join(path, n, home, ".cache/llmq/demo", err);
    return lq_fail(err, LQ_EUSAGE, "demo: expected HOME or XDG_CACHE_HOME, where it is written to");
}

static bool is_there(const char *path, const char *data, size_t bytes)
{
    char *have = NULL;
    size_t n = 0;
    const bool same = lq_read_file(&have, &n, path, bytes, NULL) == LQ_OK && n == bytes &&
                      memcmp(have, data, n) == 0;
    free(have);
    return same;
}

lq_status demo_find(char *path, size_t n, lq_err *err)
{
    char file[4300];
    lq_status s = find_folder(path, n, err);
    for (size_t i = 0; i < LQ_COUNT(files) && !s; i++) {
        const size_t bytes = (size_t)(files[i].end - files[i].data);
        s = lq_path_join(file, sizeof file, path, files[i].name, err);
        if (!s && !is_there(file, files[i].data, bytes))
            s = lq_write_file(file, files[i].data, bytes, err);
    }
    return s;
}
