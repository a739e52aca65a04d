/* base/embed.h - a file of the repository as bytes of the program: the assembler takes it in. The compiler runs
 * at the root of the repository, where .incbin finds it. */
#ifndef LLMQ_BASE_EMBED_H
#define LLMQ_BASE_EMBED_H

#if defined(__APPLE__)
#define LQ_EMBED_SECTION ".section __TEXT,__const\n"
#define LQ_EMBED_NAME(symbol) "_" #symbol
#define LQ_EMBED_HIDDEN ".private_extern "
#else
#define LQ_EMBED_SECTION ".section .rodata\n"
#define LQ_EMBED_NAME(symbol) #symbol
#define LQ_EMBED_HIDDEN ".hidden "
#endif

/* symbol .. symbol_end, and a zero after them, for this file alone. */
#define LQ_EMBED(symbol, file)                             \
    extern const char symbol[], symbol##_end[];            \
    __asm__(LQ_EMBED_SECTION ".balign 16\n" LQ_EMBED_NAME( \
        symbol) ":\n"                                      \
                ".incbin \"" file "\"\n" LQ_EMBED_NAME(symbol) "_end:\n.byte 0\n.text\n")

/* The same for every file of the program. */
#define LQ_EMBED_SHARED(symbol, file)                                                              \
    __asm__(                                                                                       \
        ".globl " LQ_EMBED_NAME(symbol) "\n.globl " LQ_EMBED_NAME(symbol) "_end\n" LQ_EMBED_HIDDEN \
            LQ_EMBED_NAME(symbol) "\n" LQ_EMBED_HIDDEN LQ_EMBED_NAME(symbol) "_end\n");            \
    LQ_EMBED(symbol, file)

#endif
