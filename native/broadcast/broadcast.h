/* Shared by all parts of the broadcast. */
#ifndef HVBCAST_BROADCAST_H
#define HVBCAST_BROADCAST_H

#include <stddef.h>

/*
 * Allocates zeroed memory. Aborts if there is none, because the other ranks would wait for this
 * one.
 */
void *require_memory(size_t count, size_t size);

#endif
