/* calib/builtin.c - embeds the built-in calibration data. */
#include "calib/builtin.h"

#include "base/embed.h"

LQ_EMBED_SHARED(calib_builtin_text, "calib/builtin_text.txt");
LQ_EMBED_SHARED(calib_builtin_chat, "calib/builtin_chat.jsonl");
