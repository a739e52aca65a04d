/* tests/fuzz/fuzz_hub.c - any bytes as a hub's list of files, and as the name of a model. Whatever is wanted
 * of a list can lie in the cache, under a digest. */
#include "publish/hub/choose.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_list(const char *text, size_t n)
{
    hub_tree t = { NULL, 0 };
    char main[HUB_PICK];
    lq_status s = hub_tree_add_page(&t, text, n, NULL);
    for (int need = HUB_MODEL; !s && need <= HUB_HEADERS; need++) {
        if (hub_choose(&t, main, sizeof main, "", (hub_need)need, NULL)) continue;
        if (*main && !hub_tree_find(&t, main)) abort();
        for (size_t i = 0; i < t.n; i++) {
            if (!t.e[i].wanted) continue;
            const char *etag = hub_etag(&t.e[i]);
            if (!hub_path_ok(t.e[i].path) || strstr(t.e[i].path, "..") == t.e[i].path) abort();
            if (!sha_is_hex(etag, strlen(etag)) && !sha1_is_hex(etag)) abort();
        }
    }
    hub_tree_free(&t);
}

static void read_name(const char *text)
{
    hub_name name;
    if (hub_name_parse(&name, text, NULL)) return;
    if (strstr(name.repo, "..") || strstr(name.revision, "/..") || name.revision[0] == '/') abort();
    if (name.pick[0] == '/' || strstr(name.pick, "/../")) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *copy = malloc(n ? n : 1), *text = malloc(n + 1); /* exact, and with its end */
    if (!copy || !text) abort();
    memcpy(copy, data, n);
    memcpy(text, data, n);
    text[n] = 0;
    read_list(copy, n);
    read_name(text);
    free(copy);
    free(text);
    return 0;
}
