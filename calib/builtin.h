/* calib/builtin.h - the calibration data inside the program (`--calib builtin`).
 *
 * The text: English prose, program text and Korean alternating, so that any leading part is mixed;
 * some 240 KB of UTF-8. The conversations: JSON lines (calib/jsonl.h) of English, Korean and code,
 * for models with a chat template; two roles that take turns, which every template knows.
 *
 * The bytes are calib/builtin_text.txt and calib/builtin_chat.jsonl, put in by the assembler.
 * scripts/make/make-builtin-text.py makes the first; NOTICE says where their parts come from. Changing one
 * byte of them changes every calibrated artifact made with it (provenance records their hashes). */
#ifndef LLMQ_CALIB_BUILTIN_H
#define LLMQ_CALIB_BUILTIN_H

#include <stddef.h>

/* not NUL-terminated */
extern const char calib_builtin_text[], calib_builtin_text_end[];
extern const char calib_builtin_chat[], calib_builtin_chat_end[];
static inline size_t calib_builtin_text_bytes(void)
{
    return (size_t)(calib_builtin_text_end - calib_builtin_text);
}
static inline size_t calib_builtin_chat_bytes(void)
{
    return (size_t)(calib_builtin_chat_end - calib_builtin_chat);
}

#endif
