/* base/locale.c - see locale.h. */
#include "base/locale.h"

#include <locale.h>
#include <pthread.h>

static locale_t plain; /* made once, kept until the process ends */

static void make(void) { plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

void *lq_locale_c(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make);
    return plain ? uselocale(plain) : uselocale((locale_t)0);
}

void lq_locale_back(void *before) { uselocale(before); }
