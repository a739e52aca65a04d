/* tests/unit/test_hub.c - names of models on a hub, git's digests, the cache's names and lists. */
#include "publish/hub/cache.h"
#include "publish/hub/choose.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

TEST(gits_names_of_files_are_gits)
{
    static const struct {
        const char *why, *text, *want; /* git hash-object --stdin */
    } t[] = { { "nothing", "", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391" },
              { "a line", "hello world\n", "3b18e512dba79e4c8300dd08aeb37f8e728b8dad" } };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char got[SHA1_HEX];
        struct sha1_ctx c;
        sha1_git_init(&c, strlen(t[i].text));
        sha1_update(&c, strlen(t[i].text), (const uint8_t *)t[i].text);
        sha1_end(got, &c);
        CHECK(strcmp(got, t[i].want) == 0, "%s: %s", t[i].why, got);
    }
}

TEST(a_name_says_repository_revision_and_file)
{
    static const struct {
        const char *text, *repo, *revision, *pick; /* repo NULL: refused */
        bool bare;                                 /* a name also without hf: */
    } t[] = {
        { "org/name", "org/name", "main", "", true },
        { "org/name@v1.0", "org/name", "v1.0", "", true },
        { "org/name:Q4_K_M", "org/name", "main", "Q4_K_M", true },
        { "a-b/c.d_e@refs/pr/1:x/y.gguf", "a-b/c.d_e", "refs/pr/1", "x/y.gguf", true },
        { "gpt2", "gpt2", "main", "", false },
        { "org/model.gguf", "org/model.gguf", "main", "", false },
        { "org/config.JSON", "org/config.JSON", "main", "", false },
        { "", NULL, "", "", false },
        { "org/", NULL, "", "", false },
        { "/name", NULL, "", "", false },
        { "../name", NULL, "", "", false },
        { "./name", NULL, "", "", false },
        { "org/na..me", NULL, "", "", false },
        { "org/na--me", NULL, "", "", false },
        { "a/b/c", NULL, "", "", false },
        { "org/name@", NULL, "", "", false },
        { "org/name@../x", NULL, "", "", false },
        { "org/name:", NULL, "", "", false },
        { "org/name:../x", NULL, "", "", false },
        { "http://host/x", NULL, "", "", false },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        hub_name n;
        const bool taken = !hub_name_parse(&n, t[i].text, NULL);
        CHECK(taken == (t[i].repo != NULL), "'%s'", t[i].text);
        CHECK(hub_name_is(t[i].text) == t[i].bare, "'%s' without hf:", t[i].text);
        if (!taken || !t[i].repo) continue;
        CHECK(strcmp(n.repo, t[i].repo) == 0 && strcmp(n.revision, t[i].revision) == 0 &&
                  strcmp(n.pick, t[i].pick) == 0,
              "'%s': %s %s %s", t[i].text, n.repo, n.revision, n.pick);
    }
}

TEST(a_snapshots_path_tells_the_name)
{
    static const struct {
        const char *path, *name; /* NULL: none */
    } t[] = {
        { "/c/hub/models--org--name/snapshots/0123", "org/name" },
        { "/c/hub/models--org--na-me.x/snapshots/0123/m.gguf", "org/na-me.x" },
        { "models--gpt2/snapshots/0123", "gpt2" },
        { "/c/hub/datasets--org--name/snapshots/0123", NULL },
        { "/c/models--org--name/blobs/0123", NULL },
        { "/c/snapshots/x", NULL },
        { "model.llmq", NULL },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char name[100] = "";
        const bool found = hub_cache_name(name, sizeof name, t[i].path);
        CHECK(found == (t[i].name != NULL) && (!found || strcmp(name, t[i].name) == 0), "%s: %s",
              t[i].path, name);
    }
}

static const char page[] =
    "[{\"type\":\"file\",\"oid\":\"ae8c63daedbd4206d7d40126955d4e6ab1c80f8f\",\"size\":3,\"path\":"
    "\".x\"},"
    "{\"type\":\"file\",\"oid\":\"2f9618c3a19b9a61add74f70bfb121335aeef666\",\"size\":7,\"path\":"
    "\"m.safetensors\","
    "\"xetHash\":\"d88b0d6a6ff9c3f8151f9d3228f57092aaea997f09af009eefd7373a77b5abb8\",\"lfs\":{"
    "\"oid\":"
    "\"d88b0d6a6ff9c3f8151f9d3228f57092aaea997f09af009eefd7373a77b5abb9\",\"size\":7}}]";

TEST(a_list_is_the_same_after_it_was_kept)
{
    char path[] = "/tmp/llmq-test-hub-XXXXXX";
    hub_tree a = { NULL, 0 }, b = { NULL, 0 };
    lq_err err = { "" };
    const int fd = mkstemp(path);
    CHECK(fd >= 0 && !hub_tree_add_page(&a, page, sizeof page - 1, &err), "%s", err.msg);
    CHECK(!hub_tree_write(&a, path, &err) && !hub_tree_read(&b, path, &err), "%s", err.msg);
    CHECK(a.n == 2 && b.n == 2, "%zu, %zu", a.n, b.n);
    for (size_t i = 0; i < a.n && i < b.n; i++) {
        const hub_entry *x = &a.e[i], *y = &b.e[i];
        CHECK(strcmp(x->path, y->path) == 0 && x->bytes == y->bytes &&
                  strcmp(x->git_sha1, y->git_sha1) == 0 && strcmp(x->sha256, y->sha256) == 0 &&
                  strcmp(x->xet, y->xet) == 0,
              "%s", x->path);
    }
    hub_tree_free(&a);
    hub_tree_free(&b);
    close(fd);
    unlink(path);
}

int main(int argc, char **argv)
{
    RUN(gits_names_of_files_are_gits);
    RUN(a_name_says_repository_revision_and_file);
    RUN(a_snapshots_path_tells_the_name);
    RUN(a_list_is_the_same_after_it_was_kept);
    return check_end();
}
