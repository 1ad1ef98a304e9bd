// The libraries in this folder consist of a name and of the name of the library that they load.
typedef int no_code;
