/* base/locale.h - numbers are written and read with a decimal point, also in a program that uses
 * the library and has called setlocale. */
#ifndef LLMQ_BASE_LOCALE_H
#define LLMQ_BASE_LOCALE_H

/* This thread uses the C locale from now on. Returns what it used before, for lq_locale_back; a
 * thread of our own never goes back. */
void *lq_locale_c(void);
void lq_locale_back(void *before);

#endif
