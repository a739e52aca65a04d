/* base/base64.h - base64 (RFC 4648) to bytes. */
#ifndef LLMQ_BASE_BASE64_H
#define LLMQ_BASE_BASE64_H

#include "base/buf.h"

/* Appends the bytes of s[n]; false: it is none, or not padded. */
bool lq_base64(lq_buf *out, const char *s, size_t n);

#endif
