/* runtime/api/api_follow.h - clients that follow a response by the events that are kept of it (api_store.h): from its
 * beginning, or from where they left off. Whoever makes it, in this process or another, only adds events; the end is
 * told by what is kept of the response then. Source: OpenAI's API reference, "Background mode". */
#ifndef LLMQ_RUNTIME_API_API_FOLLOW_H
#define LLMQ_RUNTIME_API_API_FOLLOW_H

#include "runtime/api/api.h"

/* Answers r with the events after number `after` (-1: all), as they come, until the end. The response has a log. */
void api_follow(api *a, http_req *r, const char *id, int64_t after);
/* There may be more of that response's (NULL: any's). Any thread, with no lock of the api's. */
void api_follow_news(api *a, const char *id);
void api_follow_close(api *a); /* cuts all, after http_close */

#endif
