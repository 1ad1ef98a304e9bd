/* Prints the ABI of each MPI library among the arguments. */
#include <dlfcn.h>
#include <stdio.h>

#include "mpi_abi/mpi_abi.h"

const char log_name[] = "which_abi";

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            puts(dlerror());
            return 1;
        }
        mpi_abi_load(as_function(dlsym(library, "PMPI_Init")));
        puts(mpi.name);
    }
    return 0;
}
