/* Every input in tests/fuzz/corpus, once through its fuzzer: the seeds, and what was found. (The
 * Makefile gives each fuzzer's function its own name.) */
#include "tests/support/check.h"

#include <dirent.h>
#include <stdint.h>
#include <stdlib.h>

#define FUZZERS(X) \
    X(adapter)     \
    X(body)        \
    X(cli)         \
    X(config)      \
    X(form)        \
    X(gguf)        \
    X(grammar)     \
    X(hf)          \
    X(http)        \
    X(hub)         \
    X(index)       \
    X(json)        \
    X(kv)          \
    X(kv_file)     \
    X(llmq) X(publish) X(request) X(safetensors) X(sse) X(stats) X(template) X(tokenizer)
#define X(name) int fuzz_##name(const uint8_t *data, size_t n);
FUZZERS(X)
#undef X

/* Of exactly the file's size, so that a byte beyond its end is found under AddressSanitizer. */
static uint8_t *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    long end = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    uint8_t *p = end < 0 ? NULL : malloc((size_t)end + !end);
    *n = (size_t)(end < 0 ? 0 : end);
    if (p) rewind(f);
    if (p && fread(p, 1, *n, f) != *n) free(p), p = NULL;
    if (f) fclose(f);
    return p;
}

static void replay(const char *name, int (*fuzz)(const uint8_t *data, size_t n))
{
    char path[512];
    int ran = 0;
    snprintf(path, sizeof path, "tests/fuzz/corpus/%s", name);
    DIR *d = opendir(path);
    CHECK(d, "%s is not there", path);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "tests/fuzz/corpus/%s/%.200s", name, e->d_name);
        uint8_t *data = read_all(path, &n);
        CHECK(data, "%s cannot be read", path);
        if (data) fuzz(data, n), ran++;
        free(data);
    }
    if (d) closedir(d);
    CHECK(ran > 0, "%s: no inputs", name);
}

#define X(name) \
    TEST(corpus_of_##name) { replay(#name, fuzz_##name); }
FUZZERS(X)
#undef X

TEST(no_corpus_and_no_fuzzer_is_left_out)
{
    static const char *const names[] = {
#define X(name) #name,
        FUZZERS(X)
#undef X
    };
    int folders = 0;
    DIR *d = opendir("tests/fuzz/corpus");
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t i = 0;
        if (e->d_name[0] == '.') continue;
        while (i < sizeof names / sizeof *names && strcmp(names[i], e->d_name) != 0)
            i++;
        CHECK(i < sizeof names / sizeof *names, "%s has no fuzzer here", e->d_name);
        folders++;
    }
    if (d) closedir(d);
    CHECK(folders == (int)(sizeof names / sizeof *names), "%d folders", folders);
}

int main(int argc, char **argv)
{
#define X(name) RUN(corpus_of_##name);
    FUZZERS(X)
#undef X
    RUN(no_corpus_and_no_fuzzer_is_left_out);
    return check_end();
}
