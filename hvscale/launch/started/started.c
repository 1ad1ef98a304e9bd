/* Preloaded into a rank: tells the launcher, by two empty files, that the program has called MPI_Init and that it has come through. */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

typedef int (*init_function)(int *, char ***);
typedef int (*init_thread_function)(int *, char ***, int, int *);

/* HVSCALE_STARTED is the rank's path without an ending. A rank that cannot write is not hindered: it only counts as late. */
static void leave_a_file(const char *ending)
{
    const char *stem = getenv("HVSCALE_STARTED");
    char path[PATH_MAX];
    if (stem == NULL || snprintf(path, sizeof path, "%s.%s", stem, ending) >= (int)sizeof path)
        return;
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (file >= 0)
        close(file);
}

struct search {
    const char *name;
    const void *own; /* this library's function of that name, which is not the one wanted */
    void *found;
    size_t count;
    char *objects[1024];
};

static int collect(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct search *search = data;
    if (info->dlpi_name != NULL && *info->dlpi_name != '\0')
        search->objects[search->count++] = strdup(info->dlpi_name);
    return search->count == sizeof search->objects / sizeof *search->objects;
}

static void look_in(struct search *search, const char *object)
{
    void *handle = object == NULL ? NULL : dlopen(object, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return;
    void *address = dlsym(handle, search->name);
    if (address != search->own)
        search->found = address;
    dlclose(handle);
}

/* What the program would have called without this library: behind it in the global scope, or, where libmpi was loaded RTLD_LOCAL below an
   extension of Python, the caller's own, or anybody's. */
static void *next_function(const char *name, const void *own, const void *caller)
{
    struct search search = {.name = name, .own = own, .found = dlsym(RTLD_NEXT, name)};
    Dl_info object;
    if (search.found == NULL && dladdr(caller, &object) != 0)
        look_in(&search, object.dli_fname);
    if (search.found == NULL) {
        /* Names first, dlopen after: inside the callback the loader's lock is held. */
        dl_iterate_phdr(collect, &search);
        for (size_t i = 0; i < search.count; i++) {
            if (search.found == NULL)
                look_in(&search, search.objects[i]);
            free(search.objects[i]);
        }
    }
    if (search.found == NULL) {
        fprintf(stderr, "hvscale: %s is in no library of this process\n", name);
        abort();
    }
    return search.found;
}

EXPORTED int MPI_Init(int *argc, char ***argv)
{
    init_function own = MPI_Init, next;
    void *address = next_function("MPI_Init", *(void **)&own, __builtin_return_address(0));
    memcpy(&next, &address, sizeof next);
    leave_a_file("entered");
    int status = next(argc, argv);
    if (status == 0)
        leave_a_file("started");
    return status;
}

EXPORTED int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    init_thread_function own = MPI_Init_thread, next;
    void *address = next_function("MPI_Init_thread", *(void **)&own, __builtin_return_address(0));
    memcpy(&next, &address, sizeof next);
    leave_a_file("entered");
    int status = next(argc, argv, required, provided);
    if (status == 0)
        leave_a_file("started");
    return status;
}
