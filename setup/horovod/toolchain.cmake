# Given to Horovod's build through CMAKE_TOOLCHAIN_FILE, so that not one line of Horovod is changed.
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/cxx20.cmake")
