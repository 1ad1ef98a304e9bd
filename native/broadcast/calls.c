#include "calls.h"

#include <stdlib.h>

#include "say.h"

struct library mpi;
struct calls calls;

function needed(function found, const char *name)
{
    if (found == NULL) {
        say("no library in this process has %s: the call cannot be made. Start the job without LD_PRELOAD", name);
        abort();
    }
    return found;
}

bool calls_find(function entry)
{
    const struct library_function always[] = {
        {"PMPI_Isend", &calls.isend},
        {"PMPI_Iprobe", &calls.iprobe},
        {"PMPI_Request_free", &calls.request_free},
        {"PMPI_Sendrecv", &calls.sendrecv},
        {"PMPI_Allgather", &calls.allgather},
        {"PMPI_Pack", &calls.pack},
        {"PMPI_Unpack", &calls.unpack},
        {"PMPI_Type_get_extent", &calls.type_get_extent},
        {"PMPI_Type_get_envelope", &calls.type_get_envelope},
        {"PMPI_Type_get_contents", &calls.type_get_contents},
        {"PMPI_Type_contiguous", &calls.type_contiguous},
        {"PMPI_Type_create_struct", &calls.type_create_struct},
        {"PMPI_Type_commit", &calls.type_commit},
        {"PMPI_Type_free", &calls.type_free},
        {"PMPI_Comm_dup", &calls.comm_dup},
        {"PMPI_Comm_split_type", &calls.comm_split_type},
        {"PMPI_Comm_free", &calls.comm_free},
        {"PMPI_Comm_set_errhandler", &calls.comm_set_errhandler},
        {"PMPI_Comm_call_errhandler", &calls.comm_call_errhandler},
        {"PMPI_Comm_create_keyval", &calls.comm_create_keyval},
        {"PMPI_Comm_get_attr", &calls.comm_get_attr},
        {"PMPI_Comm_set_attr", &calls.comm_set_attr},
        {"PMPI_Finalized", &calls.finalized},
    };
    const struct library_function large_counts[] = {
        {"PMPI_Bcast_c", &calls.bcast_c},
        {"PMPI_Type_get_envelope_c", &calls.type_get_envelope_c},
        {"PMPI_Type_get_contents_c", &calls.type_get_contents_c},
    };
    if (!library_describe(&mpi, entry) || !library_functions(entry, always, sizeof always / sizeof *always))
        return false;
    if (!library_functions(entry, large_counts, sizeof large_counts / sizeof *large_counts))
        calls.bcast_c = NULL, calls.type_get_envelope_c = NULL;
    return true;
}
