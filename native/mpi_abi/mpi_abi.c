/* Finds the job's MPI library among the loaded objects and fills in its constants and functions. */
#include "mpi_abi.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

struct mpi_abi mpi;

fn_ptr as_function(void *address)
{
    fn_ptr function;
    memcpy(&function, &address, sizeof function);
    return function;
}

static void *as_address(fn_ptr function)
{
    void *address;
    memcpy(&address, &function, sizeof address);
    return address;
}

static fn_ptr find_in(const char *object, const char *name)
{
    void *handle = dlopen(object, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return NULL;
    void *address = dlsym(handle, name);
    dlclose(handle);
    return as_function(address);
}

static const char inside_this_object;

static bool is_ours(fn_ptr function)
{
    Dl_info its, own;
    return dladdr(as_address(function), &its) != 0 && dladdr(&inside_this_object, &own) != 0 &&
        its.dli_fbase == own.dli_fbase;
}

/* The path of one of the loaded objects, by its place in the loader's list. */
struct object_path {
    size_t wanted, seen;
    bool found;
    char path[PATH_MAX];
};

static int copy_path(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct object_path *object = data;
    if (object->seen++ != object->wanted)
        return 0;
    object->found = true;
    snprintf(object->path, sizeof object->path, "%s", info->dlpi_name != NULL ? info->dlpi_name : "");
    return 1;
}

/*
 * The callback must not call dlopen, because it runs under the loader's lock. Fetching the paths
 * one by one, instead of collecting them, needs no allocation.
 */
static fn_ptr find_in_all_objects(const char *name)
{
    for (size_t i = 0;; i++) {
        struct object_path object = {.wanted = i};
        dl_iterate_phdr(copy_path, &object);
        if (!object.found)
            return NULL;
        fn_ptr found = object.path[0] != '\0' ? find_in(object.path, name) : NULL;
        if (found != NULL && !is_ours(found))
            return found;
    }
}

fn_ptr mpi_find(const char *name, const void *caller)
{
    /*
     * Python extensions load libmpi with RTLD_LOCAL: RTLD_NEXT does not find it, but a search from
     * the calling object does.
     */
    Dl_info object;
    fn_ptr found = NULL;
    if (dladdr(caller, &object) != 0 && object.dli_fname != NULL)
        found = find_in(object.dli_fname, name);
    if (found == NULL)
        found = as_function(dlsym(RTLD_DEFAULT, name));
    if (found == NULL)
        found = find_in_all_objects(name);
    /* A library without PMPI names cannot be profiled, but its MPI_ function makes the call. */
    if (found == NULL)
        found = as_function(dlsym(RTLD_NEXT, name + strlen("P")));
    return found != NULL ? found : find_in_all_objects(name + strlen("P"));
}

fn_ptr mpi_find_in_library_of(const char *name, fn_ptr other)
{
    Dl_info object;
    return dladdr(as_address(other), &object) != 0 ? find_in(object.dli_fname, name) : NULL;
}

fn_ptr mpi_find_replacement(const char *name)
{
    char symbol[128];
    snprintf(symbol, sizeof symbol, "hvscale_%s", name);
    return as_function(dlsym(RTLD_DEFAULT, symbol));
}

fn_ptr require_fn(fn_ptr found, const char *name)
{
    if (found == NULL) {
        log_line("no library in this process has %s, so the call cannot be made: start the job without LD_PRELOAD",
                 name);
        abort();
    }
    return found;
}

/* Open MPI's handles are addresses of its objects; fill_in_open_mpi adds them. */
static const struct mpi_abi open_mpi = {
    .name = "Open MPI",
    .handle_bytes = sizeof(void *),
    .in_place = 1,
    .root = -4,
    .proc_null = -2,
    .comm_type_shared = 0,
    .err_no_mem = 39,
    .topo_cart = 1,
    .topo_graph = 2,
    .topo_dist_graph = 3,
};

/* MPICH, MVAPICH2 and Intel MPI. */
static const struct mpi_abi mpich = {
    .name = "MPICH",
    .handle_bytes = sizeof(int),
    .comm_world = 0x44000000,
    .comm_self = 0x44000001,
    .comm_null = 0x04000000,
    .datatype_null = 0x0c000000,
    .type_byte = 0x4c00010d,
    .info_null = 0x1c000000,
    .errors_return = 0x54000001,
    .bitwise_ops = {0x58000006, 0x58000008, 0x5800000a},
    .in_place = (word)-1,
    .root = -3,
    .proc_null = -1,
    .comm_type_shared = 1,
    .err_no_mem = 34,
    .topo_cart = 2,
    .topo_graph = 1,
    .topo_dist_graph = 3,
};

/* The ABI that the MPI 5.0 standard defines, in libmpi_abi.so. */
static const struct mpi_abi standard_abi = {
    .name = "MPI ABI",
    .handle_bytes = sizeof(void *),
    .comm_world = 0x101,
    .comm_self = 0x102,
    .comm_null = 0x100,
    .datatype_null = 0x200,
    .type_byte = 0x247,
    .info_null = 0x130,
    .errors_return = 0x143,
    .bitwise_ops = {0x28, 0x29, 0x2a},
    .in_place = 1,
    .root = -4,
    .proc_null = -3,
    .comm_type_shared = 221,
    .topo_cart = 211,
    .topo_graph = 212,
    .topo_dist_graph = 213,
};

/* The address of one of Open MPI's objects; 0 if `library` has none of that name. */
static word open_mpi_object(void *library, const char *name)
{
    void *inside = dlsym(library, name);
    /*
     * The executable may contain the copy in use (a copy relocation), which the global scope finds.
     */
    void *in_use = inside != NULL ? dlsym(RTLD_DEFAULT, name) : NULL;
    return (word)(in_use != NULL ? in_use : inside);
}

static void fill_in_open_mpi(void *library)
{
    mpi = open_mpi;
    mpi.comm_world = open_mpi_object(library, "ompi_mpi_comm_world");
    mpi.comm_self = open_mpi_object(library, "ompi_mpi_comm_self");
    mpi.comm_null = open_mpi_object(library, "ompi_mpi_comm_null");
    mpi.datatype_null = open_mpi_object(library, "ompi_mpi_datatype_null");
    mpi.type_byte = open_mpi_object(library, "ompi_mpi_byte");
    mpi.info_null = open_mpi_object(library, "ompi_mpi_info_null");
    mpi.errors_return = open_mpi_object(library, "ompi_mpi_errors_return");
    mpi.bitwise_ops[0] = open_mpi_object(library, "ompi_mpi_op_band");
    mpi.bitwise_ops[1] = open_mpi_object(library, "ompi_mpi_op_bor");
    mpi.bitwise_ops[2] = open_mpi_object(library, "ompi_mpi_op_bxor");
}

static const struct {
    const char *name;
    size_t offset; /* of its field in struct mpi_abi */
    bool required;
} functions[] = {
#define MPI_FUNCTION(field, name, parameters) {"PMPI_" #name, offsetof(struct mpi_abi, field), true},
#define LARGE_COUNT_FUNCTION(field, name, parameters) {"PMPI_" #name, offsetof(struct mpi_abi, field), false},
#include "functions.def"
};

static void set_function(size_t i, void *address)
{
    memcpy((char *)&mpi + functions[i].offset, &address, sizeof address);
}

static bool fill_in_functions(void *library)
{
    const size_t count = sizeof functions / sizeof *functions;
    bool complete = true, has_large_counts = true;
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, functions[i].name);
        set_function(i, found);
        if (found == NULL && functions[i].required)
            complete = false;
        else if (found == NULL)
            has_large_counts = false;
    }
    /* All or none, because callers test only one of them. */
    for (size_t i = 0; i < count && !has_large_counts; i++)
        if (!functions[i].required)
            set_function(i, NULL);
    return complete;
}

static bool has_standard_abi(const char *library_file)
{
    const char *slash = strrchr(library_file, '/'), *name = slash != NULL ? slash + 1 : library_file;
    return strncmp(name, "libmpi_abi", strlen("libmpi_abi")) == 0;
}

bool mpi_abi_load(fn_ptr entry)
{
    Dl_info object;
    if (dladdr(as_address(entry), &object) == 0)
        return false;
    void *library = dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return false;
    /* First: Open MPI 6's libmpi_abi.so depends on the library that has Open MPI's objects. */
    if (has_standard_abi(object.dli_fname))
        mpi = standard_abi;
    else if (dlsym(library, "ompi_mpi_comm_world") != NULL)
        fill_in_open_mpi(library);
    else
        mpi = mpich;
    bool complete = fill_in_functions(library);
    dlclose(library);
    return complete;
}

int mpi_do_not_copy(word communicator, int key, void *extra, void *value, void *copied, int *keep)
{
    (void)communicator, (void)key, (void)extra, (void)value, (void)copied;
    *keep = 0;
    return 0;
}

bool mpi_call_at_end(attribute_delete_fn call)
{
    int key;
    return mpi.comm_create_keyval(mpi_do_not_copy, call, &key, NULL) == 0 &&
        mpi.comm_set_attr(mpi.comm_self, key, NULL) == 0;
}
