/* Writes lines to stderr. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void log_line(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = snprintf(line, sizeof line, "%s: ", log_name);
    length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    line[length++] = '\n';
    /* One write, so that the lines of many ranks do not mix. */
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        return;
}
