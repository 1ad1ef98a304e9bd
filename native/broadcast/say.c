#include "say.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void say(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "hvbcast: %s\n", line);
}

void *needed_memory(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL && count > 0) {
        say("no memory for %zu times %zu bytes: the broadcast cannot be made", count, size);
        abort();
    }
    return memory;
}
