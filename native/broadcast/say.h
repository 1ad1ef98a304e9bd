/* Messages to the user, and memory that a broadcast cannot do without. */
#ifndef HVBCAST_SAY_H
#define HVBCAST_SAY_H

#include <stddef.h>

/* One line on stderr, beginning "hvbcast: ". */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* Zeroed. Ends the process where there is none: the other ranks would wait for this one. */
void *needed_memory(size_t count, size_t size);

#endif
