/* Messages from a preloaded library to the user. */
#ifndef HVSCALE_LOG_H
#define HVSCALE_LOG_H

/* The first word of each line from this library. Every library that links log.c defines it. */
extern const char log_name[];

/* Writes "<log_name>: <message>" as one line to stderr. */
__attribute__((format(printf, 1, 2))) void log_line(const char *format, ...);

#endif
