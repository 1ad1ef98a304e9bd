#include "next_function.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct search {
    const char *name;
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
    search->found = dlsym(handle, search->name);
    dlclose(handle);
}

void *next_function(const char *name, const void *caller)
{
    char pmpi[64];
    snprintf(pmpi, sizeof pmpi, "P%s", name);
    /* Not by its own name: two preloaded libraries, of which one calls the other, would find each other. */
    struct search search = {.name = pmpi, .found = dlsym(RTLD_NEXT, name)};
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
