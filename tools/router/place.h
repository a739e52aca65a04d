/* tools/router/place.h - a folder of this user, $TMPDIR/llmq-XXXXXX, in which the models' servers listen and keep what
 * they share:
 *
 *     NUMBER      the socket of the model's server
 *     kept/       responses, where --response-store-dir names no other folder
 *     lock        locked while the router or its keeper lives
 *
 * The keeper removes it at the end. Where that was killed, the next router does. */
#ifndef LLMQ_TOOLS_ROUTER_PLACE_H
#define LLMQ_TOOLS_ROUTER_PLACE_H

#include "base/base.h"

/* Removes what dead routers left, then makes one. The lock is this process's, and of those that it forks, to their
 * end. Errors: lq_temp_folder's; LQ_EIO. */
lq_status place_make(char *out, size_t n, lq_err *err);
lq_status place_kept(char *out, size_t n, const char *place, lq_err *err); /* makes kept/ */
void place_remove(const char *place);

#endif
