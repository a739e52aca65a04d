/* calib/builtin.h - the calibration text inside the program (`--calib builtin`): English prose,
 * program text and Korean in turns, so that any leading part is mixed too. some 240 KB of UTF-8.
 *
 * The bytes are calib/builtin_text.txt, put in by the assembler; tools/make-builtin-text.py makes
 * that file and NOTICE says where its parts come from. Changing one byte of it changes every
 * calibrated artifact made with it (the recipe records its hash). */
#ifndef LLMQ_CALIB_BUILTIN_H
#define LLMQ_CALIB_BUILTIN_H

#include <stddef.h>

extern const char calib_builtin_text[]; /* not NUL-terminated */
extern const char calib_builtin_text_end[];
static inline size_t calib_builtin_bytes(void)
{
    return (size_t)(calib_builtin_text_end - calib_builtin_text);
}

#endif
