/* scripts/ci/analyze.h - what static analyzers must know of functions that they do not see into; the
 * first that they read (make analyze), and no part of any program. */
#include "base/base.h"
#include "base/json.h"

/* An error is never the status 0. */
#define lq_fail(err, status, ...) ((void)lq_fail(err, status, __VA_ARGS__), (status))
#define lq_wrap(err, status, ...) ((void)lq_wrap(err, status, __VA_ARGS__), (status))

/* No kind of value is NULL. */
#define cJSON_IsArray(v) ((v) && cJSON_IsArray(v))
#define cJSON_IsObject(v) ((v) && cJSON_IsObject(v))
#define cJSON_IsString(v) ((v) && cJSON_IsString(v))
#define cJSON_IsNumber(v) ((v) && cJSON_IsNumber(v))
#define cJSON_IsBool(v) ((v) && cJSON_IsBool(v))
#define cJSON_IsNull(v) ((v) && cJSON_IsNull(v))
#define cJSON_GetArraySize(v) ((v) ? cJSON_GetArraySize(v) : 0)
#define js_whole(v, lo, hi, out) ((v) && js_whole(v, lo, hi, out))
