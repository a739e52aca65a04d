/* calib/builtin.c - embeds calib/builtin_text.txt; the Makefile's compiler runs at the root of the
 * repository, where .incbin finds it. */
#include "calib/builtin.h"

__asm__(".section .rodata\n"
        ".global calib_builtin_text\n"
        ".global calib_builtin_text_end\n"
        ".balign 16\n"
        "calib_builtin_text:\n"
        ".incbin \"calib/builtin_text.txt\"\n"
        "calib_builtin_text_end:\n"
        ".byte 0\n"
        ".text\n");
