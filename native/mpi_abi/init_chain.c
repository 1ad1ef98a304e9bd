/*
 * Defines MPI_Init and MPI_Init_thread for a preloaded library: runs its hooks before and after the
 * next definition in the chain.
 */
#include "init_chain.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The address from which the program called MPI_Init, during the call; otherwise NULL. */
static _Thread_local const void *program;

EXPORTED const void *hvscale_init_caller(void);
const void *hvscale_init_caller(void)
{
    return program;
}

/*
 * The program calls only the first library in the chain; each library calls the next. RTLD_DEFAULT
 * finds the first one.
 */
static const void *calling_program(const void *caller)
{
    const void *(*first_in_chain)(void);
    fn_ptr found = as_function(dlsym(RTLD_DEFAULT, "hvscale_init_caller"));
    memcpy(&first_in_chain, &found, sizeof first_in_chain);
    const void *known = first_in_chain != NULL ? first_in_chain() : NULL;
    return known != NULL ? known : caller;
}

static bool same_object(fn_ptr one, fn_ptr other)
{
    void *addresses[2];
    Dl_info objects[2];
    memcpy(&addresses[0], &one, sizeof one);
    memcpy(&addresses[1], &other, sizeof other);
    return dladdr(addresses[0], &objects[0]) != 0 && dladdr(addresses[1], &objects[1]) != 0 &&
        objects[0].dli_fbase == objects[1].dli_fbase;
}

/*
 * The next library that wraps `name`. NULL if an MPI library comes next: it also defines the PMPI
 * name.
 */
static fn_ptr next_wrapper(const char *name, const char *pmpi_name)
{
    fn_ptr next = as_function(dlsym(RTLD_NEXT, name));
    fn_ptr pmpi = next != NULL ? mpi_find_in_library_of(pmpi_name, next) : NULL;
    return pmpi != NULL && same_object(pmpi, next) ? NULL : next;
}

static fn_ptr enter_chain(const char *name, const void *caller)
{
    char pmpi_name[64];
    snprintf(pmpi_name, sizeof pmpi_name, "P%s", name);
    program = calling_program(caller);
    if (init_hooks.before != NULL)
        init_hooks.before(program);
    /*
     * A process may contain several MPI libraries: call that of the program, which need not be the
     * loader's next.
     */
    fn_ptr next = next_wrapper(name, pmpi_name);
    return require_fn(next != NULL ? next : mpi_find(pmpi_name, program), name);
}

static int leave_chain(int status)
{
    const void *caller = program;
    program = NULL;
    if (status == 0)
        init_hooks.after(caller);
    return status;
}

EXPORTED int MPI_Init(int *argc, char ***argv);
int MPI_Init(int *argc, char ***argv)
{
    fn_ptr next = enter_chain("MPI_Init", __builtin_return_address(0));
    return leave_chain(((int (*)(int *, char ***))next)(argc, argv));
}

EXPORTED int MPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    fn_ptr next = enter_chain("MPI_Init_thread", __builtin_return_address(0));
    return leave_chain(((int (*)(int *, char ***, int, int *))next)(argc, argv, required, provided));
}
