/* What a rank is to start, as the controller wrote it. */
#ifndef HVSCALE_ORDER_H
#define HVSCALE_ORDER_H

#include <stdbool.h>

/*
 * hvscale/launch/supervision/rank_order.py writes it as strings that each end with a NUL: the
 * format, the policy of --devices, the library's variable of all GPUs (may be empty), the number of
 * variables, the variables as NAME=VALUE, the number of arguments, the arguments.
 */
struct order {
    char *devices;
    char *library_variable; /* NULL: none */
    char **variables; /* each list ends with NULL */
    char **arguments;
};

/* Returns false after one line on stderr. The order is never freed. */
bool order_read(const char *path, struct order *order);

#endif
