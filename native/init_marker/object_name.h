/* Tells the wrappers of C functions who calls them. */
#ifndef INIT_MARKER_OBJECT_NAME_H
#define INIT_MARKER_OBJECT_NAME_H

#include <stdbool.h>

/* Whether the file name of the program or library that contains this code begins with `prefix`. */
bool object_name_begins(const void *code, const char *prefix);

#endif
