/* The names of operations by their code in a profile file. */
#include "operations.h"

#define OPERATION(name, i_name, operation, code, ...) [code] = operation, [NON_BLOCKING + code] = "i" operation,
#define COLLECTIVE(...) OPERATION(__VA_ARGS__)
const char *const operation_names[HVPROF_OPERATIONS] = {
#include "collectives.def"
    [HVPROF_SEND] = "send",
    [HVPROF_RECEIVE] = "receive",
    [HVPROF_SEND_RECEIVE] = "send-receive",
    [NON_BLOCKING + HVPROF_SEND] = "isend",
    [NON_BLOCKING + HVPROF_RECEIVE] = "ireceive",
    [HVPROF_STEP] = "step",
};
