/* tools/server/isolate_bsd.c - macOS and FreeBSD have other means, which are not used. */
#include "tools/server/isolate_int.h"

const char *iso_keep_rights(void) { return "Linux alone has it"; }

const char *iso_restrict_files(bool *all, const iso_want *w)
{
    (void)w, *all = false;
    return "Linux alone has Landlock";
}

const char *iso_restrict_calls(const iso_want *w)
{
    (void)w;
    return "Linux alone has seccomp";
}
