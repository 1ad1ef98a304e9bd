#ifndef HVBCAST_BROADCAST_H
#define HVBCAST_BROADCAST_H

#define EXPORTED __attribute__((visibility("default")))

/* Have all ranks of the job compare their decision tables; after MPI_Init, which `caller` has called. */
void broadcast_compare_tables(const void *caller);

#endif
