/* runtime/api/web.h - the page that the server shows at /: a chat and live figures.
 *
 * Its sources are the files of runtime/api/web/, embedded as they are; those of its folder vendor/ are
 * libraries (docs/design/0007-page.md). They hold nothing that a key protects, so they are given to everybody; what they ask the server for needs the key. A policy
 * in their headers lets the page load nothing from elsewhere, run no script but its own files, and
 * never be framed; a model's output is inserted as text alone (Trusted Types enforce that).
 */
#ifndef LLMQ_RUNTIME_API_WEB_H
#define LLMQ_RUNTIME_API_WEB_H

#include "runtime/http/http.h"

/* Handlers: the page itself, and (star: its name) one of its files. */
void web_get_page(void *app, http_req *r);
void web_get_file(void *app, http_req *r);

#endif
