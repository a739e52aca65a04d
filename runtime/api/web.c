/* runtime/api/web.c - see web.h. The Makefile knows that this object depends on the files. */
#include "runtime/api/web.h"

#include "base/embed.h"

#include <stdio.h>

#define CSS "text/css; charset=utf-8"
#define JS "text/javascript; charset=utf-8"

/* X(name in C, name of the file, type): a new file is a row here. */
#define FILES(X)                                         \
    X(index, "index.html", "text/html; charset=utf-8")   \
    X(icon, "icon.svg", "image/svg+xml")                 \
    X(style, "page.css", CSS)                            \
    X(message_style, "message.css", CSS)                 \
    X(page, "page.js", JS)                               \
    X(chat, "chat.js", JS)                               \
    X(ask, "ask.js", JS)                                 \
    X(message, "message.js", JS)                         \
    X(tree, "tree.js", JS)                               \
    X(list, "list.js", JS)                               \
    X(exports, "export.js", JS)                          \
    X(files, "files.js", JS)                             \
    X(fit, "fit.js", JS)                                 \
    X(params, "params.js", JS)                           \
    X(prompts, "prompts.js", JS)                         \
    X(probs, "probs.js", JS)                             \
    X(live, "live.js", JS)                               \
    X(charts, "charts.js", JS)                           \
    X(markdown, "markdown.js", JS)                       \
    X(code, "code.js", JS)                               \
    X(copy, "copy.js", JS)                               \
    X(server, "server.js", JS)                           \
    X(store, "store.js", JS)                             \
    X(words, "words.js", JS)                             \
    X(markdown_it, "vendor/markdown-it.esm.min.mjs", JS) \
    X(mdit_tex, "vendor/mdit-tex.js", JS)                \
    X(mdit_tasklist, "vendor/mdit-tasklist.js", JS)      \
    X(highlight, "vendor/highlight.min.js", JS)          \
    X(temml, "vendor/temml.min.js", JS)                  \
    X(temml_style, "vendor/Temml-Local.css", CSS)        \
    X(temml_font, "vendor/Temml.woff2", "font/woff2")    \
    X(licenses, "vendor/LICENSES.txt", "text/plain; charset=utf-8")

#define X(id, name, type) LQ_EMBED(web_##id, "runtime/api/web/" name);
FILES(X)
#undef X

typedef struct {
    const char *name, *type, *data, *end;
} web_file;

static const web_file files[] = {
#define X(id, name, type) { name, type, web_##id, web_##id##_end },
    FILES(X)
#undef X
};

static const char *const headers[] = {
    ("Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
     "img-src 'self'; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"),
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Opener-Policy: same-origin",
    "Cross-Origin-Resource-Policy: same-origin",
    "Cache-Control: no-cache",
};

/* A browser that has the file already is told so. */
static void give(http_req *r, const web_file *f)
{
    const size_t n = (size_t)(f->end - f->data);
    const lq_hash hash = lq_hash_bytes(f->data, n);
    const char *known = http_header(r, "If-None-Match");
    char hex[33], tag[48];
    const char *all[LQ_COUNT(headers) + 1];
    lq_hash_hex(hex, &hash);
    snprintf(tag, sizeof tag, "ETag: \"%s\"", hex);
    memcpy(all, headers, sizeof headers);
    all[LQ_COUNT(headers)] = tag;
    const bool same = known && strstr(known, tag + strlen("ETag: "));
    http_reply(r, same ? 304 : 200, f->data, same ? 0 : n,
               &(http_extra){ .type = f->type, .headers = all, .n_headers = LQ_COUNT(all) });
}

void web_get_page(void *app, http_req *r)
{
    (void)app;
    give(r, &files[0]);
}

void web_get_file(void *app, http_req *r)
{
    (void)app;
    for (size_t i = 1; i < LQ_COUNT(files); i++)
        if (strcmp(files[i].name, http_rest(r)) == 0) {
            give(r, &files[i]);
            return;
        }
    http_error(r, 404, NULL, NULL, "no such path");
}
