/* In front of MPI_Init: ranks with different tables are to be told before the job begins. */
#include "broadcast.h"
#include "calls.h"

typedef int (*init_function)(int *, char ***);
typedef int (*init_thread_function)(int *, char ***, int, int *);

static int init(function next, int *argc, char ***argv, const void *caller)
{
    int status = ((init_function)next)(argc, argv);
    if (status == 0)
        broadcast_compare_tables(caller);
    return status;
}

static int init_thread(function next, int *argc, char ***argv, int required, int *provided, const void *caller)
{
    int status = ((init_thread_function)next)(argc, argv, required, provided);
    if (status == 0)
        broadcast_compare_tables(caller);
    return status;
}

EXPORTED int MPI_Init(int *argc, char ***argv);
int MPI_Init(int *argc, char ***argv)
{
    const void *caller = __builtin_return_address(0);
    return init(needed(library_next("MPI_Init", caller), "MPI_Init"), argc, argv, caller);
}

EXPORTED int MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    const void *caller = __builtin_return_address(0);
    return init_thread(needed(library_next("MPI_Init_thread", caller), "MPI_Init_thread"), argc, argv, required, provided, caller);
}

/* What hvprof makes its calls with. */
EXPORTED int hvscale_PMPI_Init(int *argc, char ***argv);
int hvscale_PMPI_Init(int *argc, char ***argv)
{
    const void *caller = __builtin_return_address(0);
    return init(needed(library_find("PMPI_Init", caller), "PMPI_Init"), argc, argv, caller);
}

EXPORTED int hvscale_PMPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int hvscale_PMPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    const void *caller = __builtin_return_address(0);
    return init_thread(needed(library_find("PMPI_Init_thread", caller), "PMPI_Init_thread"), argc, argv, required, provided, caller);
}
