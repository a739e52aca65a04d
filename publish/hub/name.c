/* publish/hub/name.c - see name.h. */
#include "publish/hub/name.h"

#include "base/path.h"
#include "publish/sha256.h"

#include <ctype.h>
#include <stdio.h>

bool hub_is_commit(const char *text) { return sha1_is_hex(text); }

/* One part of "org/name": as the hub has them, 96 letters, digits and ._- at most. */
static bool is_part(const char *s, size_t n)
{
    if (!n || n > 96 || !(isalnum((unsigned char)s[0]) || s[0] == '_')) return false;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i])) return false;
        if (i && s[i] == s[i - 1] && (s[i] == '.' || s[i] == '-')) return false;
    }
    return isalnum((unsigned char)s[n - 1]) || s[n - 1] == '_';
}

bool hub_path_ok(const char *path)
{
    for (const char *p = path;; p++) {
        const size_t n = strcspn(p, "/");
        if (!n || p[0] == '.' || n > 255) return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)p[i] < ' ' || p[i] == 127 || p[i] == '\\') return false;
        p += n;
        if (!*p) return (size_t)(p - path) < HUB_PICK;
    }
}

static bool take(char *out, size_t n, const char *from, size_t len)
{
    snprintf(out, n, "%.*s", (int)len, from);
    return len && len < n;
}

lq_status hub_name_parse(hub_name *n, const char *text, lq_err *err)
{
    *n = (hub_name){ .revision = "main" };
    const size_t repo = strcspn(text, "@:");
    const char *rest = text + repo, *slash = memchr(text, '/', repo);
    const size_t org = slash ? (size_t)(slash - text) + 1 : 0;
    bool ok = (!slash || is_part(text, org - 1)) && is_part(text + org, repo - org) &&
              take(n->repo, sizeof n->repo, text, repo);
    if (ok && *rest == '@') {
        const size_t len = strcspn(++rest, ":");
        ok = take(n->revision, sizeof n->revision, rest, len) && hub_path_ok(n->revision);
        rest += len;
    }
    if (ok && *rest == ':')
        ok = take(n->pick, sizeof n->pick, rest + 1, strlen(rest + 1)) && hub_path_ok(n->pick);
    return ok ? LQ_OK
              : lq_fail(err, LQ_EUSAGE,
                        "hf: expected ORG/NAME[@REVISION][:FILE or quantization], found '%.200s'",
                        text);
}

bool hub_name_is(const char *text)
{
    static const char *const files[] = { ".llmq", ".gguf", ".safetensors", ".json",
                                         ".bin",  ".pth",  ".pt" };
    hub_name n;
    if (hub_name_parse(&n, text, NULL) || !strchr(n.repo, '/')) return false;
    for (size_t i = 0; i < LQ_COUNT(files); i++)
        if (lq_has_ending(n.repo, files[i])) return false;
    return true;
}
