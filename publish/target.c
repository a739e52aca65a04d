/* publish/target.c - what targets share: see target.h. */
#include "publish/target.h"

#include <stdarg.h>
#include <stdio.h>

void pub_say(const pub_opts *o, const char *fmt, ...)
{
    char text[400];
    va_list args;
    if (!o->say) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    o->say(lq_printable(text));
}
