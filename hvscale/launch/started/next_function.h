/* For libraries that stand in front of a function of MPI's by LD_PRELOAD. */
#ifndef HVSTARTED_NEXT_FUNCTION_H
#define HVSTARTED_NEXT_FUNCTION_H

/* What the program would have called without this library: `name` behind it in the global scope, or, where libmpi was loaded RTLD_LOCAL below an
 * extension of Python, PMPI's in the caller's own object or any other. Ends the process where there is none. */
void *next_function(const char *name, const void *caller);

#endif
