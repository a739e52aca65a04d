/* tests/fuzz/fuzz_publish.c - any bytes as a SHA256SUMS, as the name of a file, as the front matter
 * of a card. Whatever names are taken are of one folder and its folders of templates and modules, and
 * are there once. */
#include "formats/hf/front_matter.h"
#include "publish/files.h"

#include <stdlib.h>
#include <strings.h>

#define PLAIN "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_name(const char *name)
{
    const char *slash = strchr(name, '/');
    if (name[0] == '/' || name[0] == '-' || strstr(name, "..") == name || strchr(name, '\\'))
        abort();
    if (!slash || strncmp(name, "additional_chat_templates/", 26) == 0) {
        if (slash && strchr(slash + 1, '/')) abort();
        return;
    }
    if (name[strspn(name, PLAIN)] != '/') abort(); /* a module's: 1_Pooling/config.json */
    if (strcmp(slash, "/config.json") != 0 && strcmp(slash, "/model.safetensors") != 0) abort();
}

static void read_sums(const char *text, size_t n)
{
    pub_files fs = { NULL, 0 };
    if (!pub_read_sums(&fs, text, n, NULL))
        for (size_t i = 0; i < fs.n; i++) {
            check_name(fs.f[i].name);
            if (!sha_is_hex(fs.f[i].sha256, strlen(fs.f[i].sha256))) abort();
            for (size_t k = 0; k < i; k++)
                if (strcasecmp(fs.f[i].name, fs.f[k].name) == 0) abort();
        }
    else if (fs.n)
        abort();
    pub_files_free(&fs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const keys[] = { "license", "language" };
    char *copy = malloc(n ? n : 1), *text = malloc(n + 1); /* exact, and with its end */
    if (!copy || !text) abort();
    memcpy(copy, data, n);
    memcpy(text, data, n);
    text[n] = 0;
    read_sums(copy, n);
    if (!pub_check_name(text, NULL)) check_name(text);
    for (size_t i = 0; i < LQ_COUNT(keys); i++) {
        char *lines;
        if (fm_lines(&lines, copy, n, keys[i], NULL)) abort();
        if (lines && (strpbrk(lines, "&*{}") || strlen(lines) > n + 1)) abort();
        free(lines);
    }
    free(copy);
    free(text);
    return 0;
}
