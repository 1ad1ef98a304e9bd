/* In front of MPI_Init: ranks with different tables are to be told before the job begins. */
#include <string.h>

#include "broadcast.h"
#include "next_function.h"

typedef int (*init_function)(int *, char ***);
typedef int (*init_thread_function)(int *, char ***, int, int *);

EXPORTED int MPI_Init(int *argc, char ***argv);
int MPI_Init(int *argc, char ***argv)
{
    const void *caller = __builtin_return_address(0);
    init_function next;
    void *address = next_function("MPI_Init", caller);
    memcpy(&next, &address, sizeof next);
    int status = next(argc, argv);
    if (status == 0)
        broadcast_compare_tables(caller);
    return status;
}

EXPORTED int MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    const void *caller = __builtin_return_address(0);
    init_thread_function next;
    void *address = next_function("MPI_Init_thread", caller);
    memcpy(&next, &address, sizeof next);
    int status = next(argc, argv, required, provided);
    if (status == 0)
        broadcast_compare_tables(caller);
    return status;
}
