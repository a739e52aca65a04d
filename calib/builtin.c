/* calib/builtin.c - embeds the built-in calibration data; the Makefile's compiler runs at the root
 * of the repository, where .incbin finds it. */
#include "calib/builtin.h"

#define EMBED(symbol, file)                           \
    __asm__(".section .rodata\n"                      \
            ".global " symbol "\n"                    \
            ".global " symbol "_end\n"                \
            ".hidden " symbol "\n"                    \
            ".hidden " symbol "_end\n"                \
            ".balign 16\n" symbol ":\n"               \
            ".incbin \"" file "\"\n" symbol "_end:\n" \
            ".byte 0\n"                               \
            ".text\n")

EMBED("calib_builtin_text", "calib/builtin_text.txt");
EMBED("calib_builtin_chat", "calib/builtin_chat.jsonl");
