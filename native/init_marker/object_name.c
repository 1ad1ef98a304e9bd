#include "init_marker/object_name.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

bool object_name_begins(const void *code, const char *prefix)
{
    Dl_info object;
    if (dladdr(code, &object) == 0 || object.dli_fname == NULL)
        return false;
    const char *slash = strrchr(object.dli_fname, '/');
    const char *name = slash != NULL ? slash + 1 : object.dli_fname;
    return strncmp(name, prefix, strlen(prefix)) == 0;
}
