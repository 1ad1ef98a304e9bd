/* Non-blocking calls between their start and the Wait or Test that sees their end. */
#ifndef HVPROF_REQUESTS_H
#define HVPROF_REQUESTS_H

#include "library.h"
#include "recorder.h"

/* A call has started: it is recorded when `request` is seen to complete, and `needed`, memory that MPI reads until then or NULL, is freed. */
void request_started(word request, const struct hvprof_message *message, void *needed);

/* MPI_Comm_idup has started: the communicator at `made` gets its identity when `request` is seen to complete. */
void request_makes_communicator(word request, word made, uint64_t identity);

#endif
