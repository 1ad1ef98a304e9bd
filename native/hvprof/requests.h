/* Non-blocking calls between their start and the Wait or Test that completes them. */
#ifndef HVPROF_REQUESTS_H
#define HVPROF_REQUESTS_H

#include "mpi_abi/mpi_abi.h"
#include "recorder.h"

/*
 * A call has started and will be recorded once `request` completes. `buffer` (or NULL) is memory
 * that MPI reads until then; it is freed afterwards.
 */
void request_started(word request, const struct hvprof_message *message, void *buffer);

/*
 * MPI_Comm_idup has started. The handle that MPI stores at `new_communicator` is registered with
 * `identity` once `request` completes.
 */
void request_creates_communicator(word request, word new_communicator, uint64_t identity);

#endif
