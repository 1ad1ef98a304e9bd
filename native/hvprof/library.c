#include "library.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ISO C has no cast from an object's address to a function's; POSIX promises that the bits are the same. */
static function as_function(void *address)
{
    function result;
    memcpy(&result, &address, sizeof result);
    return result;
}

static function look_in(const char *object, const char *name)
{
    void *handle = dlopen(object, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return NULL;
    void *address = dlsym(handle, name);
    dlclose(handle);
    return as_function(address);
}

struct objects {
    size_t count;
    char *names[1024];
};

static int collect(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct objects *objects = data;
    if (info->dlpi_name != NULL && *info->dlpi_name != '\0')
        objects->names[objects->count++] = strdup(info->dlpi_name);
    return objects->count == sizeof objects->names / sizeof *objects->names;
}

static const char in_this_object;

static bool is_ours(function found)
{
    void *address;
    memcpy(&address, &found, sizeof address);
    Dl_info its, own;
    return dladdr(address, &its) != 0 && dladdr(&in_this_object, &own) != 0 && its.dli_fbase == own.dli_fbase;
}

/* Names first, dlopen after: inside the callback the loader's lock is held. */
static function look_everywhere(const char *name)
{
    struct objects objects = {0};
    dl_iterate_phdr(collect, &objects);
    function found = NULL;
    for (size_t i = 0; i < objects.count; i++) {
        if (found == NULL && objects.names[i] != NULL) {
            found = look_in(objects.names[i], name);
            if (found != NULL && is_ours(found))
                found = NULL;
        }
        free(objects.names[i]);
    }
    return found;
}

/* In MPI_Init of a launched job libhvinit-marker stands before the other preloaded libraries: it knows who has called. */
static const void *program_behind(const void *caller)
{
    const void *(*ask)(void);
    function found = as_function(dlsym(RTLD_DEFAULT, "hvscale_init_caller"));
    memcpy(&ask, &found, sizeof ask);
    const void *program = ask != NULL ? ask() : NULL;
    return program != NULL ? program : caller;
}

function library_find(const char *name, const void *caller)
{
    caller = program_behind(caller);
    /* libmpi is often RTLD_LOCAL, below an extension that Python loaded: RTLD_NEXT does not see it, the caller's own object does. */
    Dl_info object;
    function found = NULL;
    if (dladdr(caller, &object) != 0 && object.dli_fname != NULL)
        found = look_in(object.dli_fname, name);
    if (found == NULL)
        found = as_function(dlsym(RTLD_DEFAULT, name));
    if (found == NULL)
        found = look_everywhere(name);
    /* A library without PMPI names cannot be recorded, but its MPI_ function, behind ours, still makes the call. */
    if (found == NULL)
        found = as_function(dlsym(RTLD_NEXT, name + strlen("P")));
    return found != NULL ? found : look_everywhere(name + strlen("P"));
}

function library_next(const char *name, const void *caller)
{
    char pmpi[128];
    function found = as_function(dlsym(RTLD_NEXT, name));
    /* Elsewhere not by its own name: two preloaded libraries, of which one calls the other, would find each other. */
    snprintf(pmpi, sizeof pmpi, "P%s", name);
    return found != NULL ? found : library_find(pmpi, caller);
}

function library_find_beside(const char *name, function other)
{
    void *address;
    memcpy(&address, &other, sizeof address);
    Dl_info object;
    return dladdr(address, &object) != 0 ? look_in(object.dli_fname, name) : NULL;
}

function library_replacement(const char *name)
{
    char symbol[128];
    snprintf(symbol, sizeof symbol, "hvscale_%s", name);
    return as_function(dlsym(RTLD_DEFAULT, symbol));
}

static const struct library open_mpi = {
    .flavour = "Open MPI", .in_place = 1, .root = -4, .proc_null = -2, .handle_bytes = sizeof(void *), .shared = 0,
    .cart = 1, .graph = 2, .dist_graph = 3};
/* MPICH, MVAPICH2 and Intel MPI. */
static const struct library mpich = {
    .flavour = "MPICH", .in_place = (word)-1, .root = -3, .proc_null = -1, .handle_bytes = sizeof(int), .world = 0x44000000,
    .self = 0x44000001, .no_communicator = 0x04000000, .byte = 0x4c00010d, .no_type = 0x0c000000, .no_info = 0x1c000000,
    .errors_return = 0x54000001, .shared = 1, .cart = 2, .graph = 1, .dist_graph = 3,
    .bitwise = {0x58000006, 0x58000008, 0x5800000a}};
/* The ABI that MPI 5.0 itself defines, in libmpi_abi.so. */
static const struct library standard_abi = {
    .flavour = "MPI ABI", .in_place = 1, .root = -4, .proc_null = -3, .handle_bytes = sizeof(void *), .world = 0x101,
    .self = 0x102, .no_communicator = 0x100, .byte = 0x247, .no_type = 0x200, .no_info = 0x130, .errors_return = 0x143, .shared = 221, .cart = 211, .graph = 212, .dist_graph = 213,
    .bitwise = {0x28, 0x29, 0x2a}};

/* Open MPI's handles are addresses of its own objects. 0 when `library` has none of that name. */
static word open_mpi_object(void *library, const char *name)
{
    void *inside = dlsym(library, name);
    /* An executable may hold the library's own copy of it (a copy relocation): the global scope knows which one is used. */
    void *in_use = inside != NULL ? dlsym(RTLD_DEFAULT, name) : NULL;
    return (word)(in_use != NULL ? in_use : inside);
}

/* The library that holds `entry`, to be closed by the caller; its name goes to `name`. NULL when that cannot be told. */
static void *open_library(function entry, const char **name)
{
    void *address;
    memcpy(&address, &entry, sizeof address);
    Dl_info object;
    if (dladdr(address, &object) == 0)
        return NULL;
    *name = object.dli_fname;
    return dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

static bool look_for(void *library, const struct library_function *wanted, size_t count)
{
    bool complete = true;
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, wanted[i].name);
        memcpy(wanted[i].field, &found, sizeof found);
        complete = complete && found != NULL;
    }
    return complete;
}

bool library_functions(function entry, const struct library_function *wanted, size_t count)
{
    const char *name;
    void *handle = open_library(entry, &name);
    if (handle == NULL)
        return false;
    bool complete = look_for(handle, wanted, count);
    dlclose(handle);
    return complete;
}

bool library_describe(struct library *library, function entry)
{
    const char *name;
    void *handle = open_library(entry, &name);
    if (handle == NULL)
        return false;
    word open_mpi_world = open_mpi_object(handle, "ompi_mpi_comm_world");
    if (open_mpi_world != 0) {
        *library = open_mpi;
        library->world = open_mpi_world;
        library->self = open_mpi_object(handle, "ompi_mpi_comm_self");
        library->no_communicator = open_mpi_object(handle, "ompi_mpi_comm_null");
        library->byte = open_mpi_object(handle, "ompi_mpi_byte");
        library->no_type = open_mpi_object(handle, "ompi_mpi_datatype_null");
        library->no_info = open_mpi_object(handle, "ompi_mpi_info_null");
        library->errors_return = open_mpi_object(handle, "ompi_mpi_errors_return");
        library->bitwise[0] = open_mpi_object(handle, "ompi_mpi_op_band");
        library->bitwise[1] = open_mpi_object(handle, "ompi_mpi_op_bor");
        library->bitwise[2] = open_mpi_object(handle, "ompi_mpi_op_bxor");
    } else {
        *library = strstr(name, "libmpi_abi") != NULL ? standard_abi : mpich;
    }
    const struct library_function needed[] = {
        {"PMPI_Initialized", &library->initialized},
        {"PMPI_Get_library_version", &library->version},
        {"PMPI_Comm_rank", &library->comm_rank},
        {"PMPI_Comm_size", &library->comm_size},
        {"PMPI_Comm_remote_size", &library->comm_remote_size},
        {"PMPI_Comm_test_inter", &library->comm_test_inter},
        {"PMPI_Type_size_x", &library->type_size},
        {"PMPI_Send", &library->send},
        {"PMPI_Irecv", &library->irecv},
        {"PMPI_Test", &library->test},
        {"PMPI_Wait", &library->wait},
        {"PMPI_Cancel", &library->cancel},
        {"PMPI_Topo_test", &library->topo_test},
        {"PMPI_Cartdim_get", &library->cartdim_get},
        {"PMPI_Graph_neighbors_count", &library->graph_neighbors_count},
        {"PMPI_Dist_graph_neighbors_count", &library->dist_graph_neighbors_count},
        {"PMPI_Comm_group", &library->comm_group},
        {"PMPI_Comm_remote_group", &library->comm_remote_group},
        {"PMPI_Group_size", &library->group_size},
        {"PMPI_Group_translate_ranks", &library->group_translate_ranks},
        {"PMPI_Group_free", &library->group_free},
    };
    bool complete = look_for(handle, needed, sizeof needed / sizeof *needed);
    dlclose(handle);
    return complete;
}
